"""A Hugging Face model's GEMMs: found from its config, and run on tuned kernels."""
