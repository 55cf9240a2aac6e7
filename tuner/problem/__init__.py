"""Problems: what is computed, and everything about it that may change which config is fastest."""

from tuner.problem.gemm_fields import parse_shape
from tuner.problem.problem import Problem

__all__ = ["Problem", "parse_shape"]
