"""GEMMs whose operands are copied so that they run along K."""
