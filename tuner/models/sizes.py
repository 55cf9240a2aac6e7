"""Turns the numbers of tokens that a model is tuned for into the Ms of its families."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import ProblemError
from tuner.problem import family
from tuner.problem.gemm_fields import check_size

TOKENS, SEQUENCES, FIXED = "tokens", "sequences", "fixed"
"""What the M of a family counts: a step's tokens; its sequences, of which only the last tokens are used; nothing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of tokens: ranges, which stand for decode steps of one token a sequence, and single numbers."""

    ranges: tuple[range, ...]
    single: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> Sizes:
        """Read "1-512,8192".

        Raises:
            ProblemError: the text is no list of sizes and ranges, a size is out of bounds, or a range is too large.
        """
        parts = [family.sizes(part) for part in text.split(",")]
        ranges = tuple(each for each in parts if isinstance(each, range))
        for each in ranges:
            family.checked_rungs(each)
        single = (m for each in parts if not isinstance(each, range) for m in each)
        return Sizes(ranges, tuple(check_size("M", m) for m in single))

    def up_to(self, most: int) -> Sizes:
        """Those of the sizes that are no larger."""
        ranges = [range(each[0], min(each[-1], most) + 1) for each in self.ranges if each[0] <= most]
        single = (*(each[0] for each in ranges if len(each) == 1), *(m for m in self.single if m <= most))
        return Sizes(tuple(each for each in ranges if len(each) > 1), single)

    def cells(self, of: str, factor: int) -> list[str]:
        """The cells of the column m of a family's lines.

        A single size beyond all ranges stands for a prefill, and is left out of a family of SEQUENCES.

        Args:
            of: TOKENS, SEQUENCES or FIXED.
            factor: the M of one token or sequence; for FIXED, M itself.

        Raises:
            ProblemError: `tuner run` would refuse a cell.
        """
        if of == FIXED:
            return [str(factor)]
        ranges = [range(each[0] * factor, each[-1] * factor + 1) for each in self.ranges]
        largest = max((each[-1] for each in self.ranges), default=0)
        single = [m * factor for m in self.single if of == TOKENS or not self.ranges or m <= largest]
        try:
            for each in ranges:
                family.checked_rungs(each)
            for m in single:
                check_size("M", m)
        except ProblemError as e:
            raise ProblemError(f"a family of this model has {factor} times the M of --m: {e}: type smaller ones") from e
        cells = [f"{each[0]}-{each[-1]}" for each in ranges]
        return [*cells, *([",".join(map(str, single))] if single else [])]
