"""What `tuner verify` finds wrong with tables and databases."""
