"""The kernel `simt`: products of float32 without tensor cores."""
