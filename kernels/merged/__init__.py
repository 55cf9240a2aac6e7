"""The kernel of the op `merged_linear`: x times two or three weights, in one launch."""
