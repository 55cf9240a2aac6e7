"""Problems: what is computed, and everything about it that may change which config is fastest."""

from tuner.problem.problem import Problem, parse_shape

__all__ = ["Problem", "parse_shape"]
