"""The kernel of the op `rms_norm`."""
