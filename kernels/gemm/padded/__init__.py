"""GEMMs whose operands are copied into rows that the tensor memory accelerator can read."""
