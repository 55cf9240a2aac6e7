"""`tuner.tuned`: any Triton kernel, under a decorator that takes what `triton.autotune` takes."""
