"""Files that other tuners wrote, read as problems to tune and configs to try."""
