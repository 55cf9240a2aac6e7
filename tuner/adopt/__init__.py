"""`tuner.adopt`: kernels under `triton.autotune` in libraries that know nothing of triton-tuner."""
