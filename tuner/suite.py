"""The public names of `tuner.problem.suite`, for code outside this package."""

from tuner.problem.suite import Entry, entries, load, load_with_ladders, names, problem_of

__all__ = ["Entry", "entries", "load", "load_with_ladders", "names", "problem_of"]
