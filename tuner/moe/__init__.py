"""Fused experts of vLLM and SGLang: their kernel, tuned on their own terms."""
