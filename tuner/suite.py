"""The public names of `tuner.problem.suite`, for code outside this package."""

from tuner.problem.suite import Entry, entries, load, names, problem_of

__all__ = ["Entry", "entries", "load", "names", "problem_of"]
