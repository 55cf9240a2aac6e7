"""GEMMs of fp8 operands with block scales."""
