"""The kernel of the op `fused_moe`: a mixture of experts from its tokens to their weighted sums."""
