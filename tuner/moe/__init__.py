"""Tunes the fused-experts kernels of vLLM and SGLang, and writes the config files that they read."""
