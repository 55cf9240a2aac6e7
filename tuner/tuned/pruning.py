"""`prune_configs_by`, by the rules of `triton.autotune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import KernelError, UsageError

OPTIONS = ("early_config_prune", "perf_model", "top_k")


def check(prune: Mapping[str, Any]) -> None:
    """Raise UsageError where an option is none."""
    for option in prune:
        if option not in OPTIONS:
            raise UsageError(f"prune_configs_by has no {option!r}: expected {', '.join(OPTIONS)}")


def pruned(
    op: str, prune: Mapping[str, Any], configs: Sequence[Any], named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The `triton.Config`s that are left for a call: by `early_config_prune`, then the `top_k` of `perf_model`.

    Args:
        op: the kernel's name.
        prune: the options.
        configs: all of them; a single one is left as it is.
        named: the call's arguments by position, by name.
        kwargs: its arguments by name.

    Raises:
        KernelError: none is left.
        UsageError: `top_k` is no number.
    """
    kept = list(configs)
    if len(kept) == 1:
        return kept
    if (early := prune.get("early_config_prune")) is not None:
        kept = list(early(list(configs), named, **kwargs))
        if not kept:
            raise KernelError(f"early_config_prune of {op} left no config: expected one at least")
    if (model := prune.get("perf_model")) is not None:
        most = prune.get("top_k", 1.0)
        most = int(len(configs) * most) if isinstance(most, float) and most <= 1.0 else most
        if not isinstance(most, int):
            raise UsageError(f"{op}: top_k is {most!r}: expected a whole number or a share")
        if len(kept) > most:
            kept = sorted(kept, key=lambda config: model(**named, **kwargs, **config.all_kwargs()))[:most]
    return kept
