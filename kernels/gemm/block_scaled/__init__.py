"""GEMMs of fp8 operands with scales of blocks."""
