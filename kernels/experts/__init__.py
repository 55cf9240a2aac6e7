"""The kernel of the op `fused_experts`: a mixture of experts from its tokens to their weighted sums."""
