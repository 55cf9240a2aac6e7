"""`tuner.tuned`: any Triton kernel, under the decorator that takes what `triton.autotune` takes."""
