"""The options of `tuner moe`: which go together, and the layer that they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.cli.options import check_fresh_since
from tuner.errors import UsageError

if TYPE_CHECKING:
    from tuner.moe.layer import Layer

_SIZES = ("experts", "hidden", "intermediate", "top_k")
_PRECISION = ("dtype", "block_shape", "group_size", "zero_points")


@dataclass(frozen=True, slots=True)
class MoeOptions:
    """What was typed after `tuner moe`, an attribute for each option.

    Attributes:
        experts, hidden, intermediate, top_k: the layer's sizes; what is None comes from `model`.
        model: the name or the file of a Hugging Face config.
        dtype, block_shape, group_size, zero_points: how weights are stored; what is None comes from `model`.
        tp: the GPUs that share the intermediate size.
        ms: the numbers of tokens, None for the packages' own.
        routing: which experts tokens go to: a distribution's name, or a file of recorded ids.
        package: vllm or sglang.
        out: the folder to write into.
        trials: the most configs of a problem, None for as many as the race tries.
        time_budget_s: seconds that tuning may take, None for any.
        play_only: whether nothing is tuned and written.
        device: what `--device` names.
        db: the database, None for the default.
        fresh: whether to measure again what earlier runs measured.
        fresh_since: a run: whether to measure again what was measured before it. None without.
        as_json: whether to print JSON.
    """

    experts: int | None
    hidden: int | None
    intermediate: int | None
    top_k: int | None
    model: str | None
    dtype: str | None
    block_shape: tuple[int, ...] | None
    group_size: int | None
    zero_points: bool | None
    tp: int
    ms: tuple[int, ...] | None
    routing: str
    package: str
    out: Path
    trials: int | None
    time_budget_s: float | None
    play_only: bool
    device: str
    db: str | None
    fresh: bool
    fresh_since: str | None
    as_json: bool

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: an option makes no sense beside the others, or a block has not two sizes.
        """
        tuning = ("trials", self.trials), ("time-budget", self.time_budget_s), ("fresh", self.fresh)
        for name, value in (*tuning, ("fresh-since", self.fresh_since)):
            if self.play_only and value:
                raise UsageError(f"--{name} is for tuning, and --play-only tunes nothing: leave one out")
        check_fresh_since(self.fresh_since, self.db)
        if self.block_shape is not None and len(self.block_shape) != 2:
            raise UsageError("--block-shape has two sizes, along N and K: type for instance --block-shape 128,128")

    def layer(self) -> Layer:
        """Return the layer that sizes, precision and model name; what is typed counts before the model's.

        Raises:
            UsageError: a size is missing.
            ModelError: the model's config cannot be read.
        """
        from tuner.moe.layer import Layer

        sizes = self._typed(_SIZES)
        precision = self._typed(_PRECISION)
        if self.model is not None:
            from tuner.moe import model

            sizes |= model.sizes(self.model, sizes)
            precision = ({} if "dtype" in precision else model.quantization(self.model)) | precision
        missing = [name for name in _SIZES if name not in sizes]
        if missing:
            names = ", ".join("--" + name.replace("_", "") for name in missing)
            raise UsageError(f"no {names} given: type {'it' if len(missing) == 1 else 'them'}, or --model CONFIG.json")
        return Layer(**sizes, **precision, tp=self.tp)

    def shared_experts_note(self) -> str | None:
        """Return a line where SGLang, which fuses a model's shared expert by default, looks for another file.

        Raises:
            ModelError: the model's config cannot be read.
        """
        if self.package != "sglang" or self.model is None or self.experts is not None:
            return None
        from tuner.moe import model

        shared = model.fused_shared_experts(self.model)
        if not shared:
            return None
        sizes = model.sizes(self.model)
        experts, top_k = sizes["experts"] + shared, sizes["top_k"] + shared
        return (
            f"tuned for {sizes['experts']} routed experts, as with --disable-shared-experts-fusion; where SGLang fuses "
            f"the shared expert, its default for such models, it looks for E={experts}: add --experts {experts} "
            f"--topk {top_k}"
        )

    def _typed(self, names: tuple[str, ...]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}
