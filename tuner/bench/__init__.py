"""`tuner bench`: what a lookup gives, in paired rounds with other tuners."""
