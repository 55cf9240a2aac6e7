"""Applies `prune_configs_by` as `triton.autotune` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import KernelError, TunerError, UsageError, in_short

OPTIONS = ("early_config_prune", "perf_model", "top_k")
_log = logging.getLogger(__name__)


def check(op: str, prune: Any) -> None:
    """Warn of unknown options, which `triton.autotune` ignores silently; UsageError where these are no options."""
    if not isinstance(prune, Mapping):
        raise UsageError(f"{op}: prune_configs_by is a {type(prune).__name__}: expected a dict of {', '.join(OPTIONS)}")
    if unknown := [str(option) for option in prune if option not in OPTIONS]:
        _log.warning(
            "%s: prune_configs_by has no %s: left out, expected %s", op, " and ".join(unknown), ", ".join(OPTIONS)
        )


def pruned(
    op: str, prune: Mapping[str, Any], configs: Sequence[Any], named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the `triton.Config`s left for a call: `early_config_prune` first, then the `top_k` of `perf_model`.

    A single config is never pruned. KernelError where none is left, a user's function raises, or `top_k` is no number.
    """
    if len(configs) == 1:
        return list(configs)
    import torch

    try:
        return _pruned(op, prune, configs, named, kwargs)
    except (TunerError, torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as e:
        # A user's function may raise anything. This kernel then cannot be tuned, but others can.
        said = f"prune_configs_by of {op} failed: {in_short(e)}"[:500]
        if isinstance(e, KeyError) and (missing := str(e.args[0] if e.args else "")) in kwargs:
            said += f": the call gives {missing} by name, so take it from **kwargs"
        raise KernelError(said) from e


def _pruned(
    op: str, prune: Mapping[str, Any], configs: Sequence[Any], named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    kept = list(configs)
    if (early := prune.get("early_config_prune")) is not None:
        kept = list(early(list(configs), named, **kwargs))
        if not kept:
            raise KernelError(f"early_config_prune of {op} left no config: expected one at least")
    if (model := prune.get("perf_model")) is not None:
        given = prune.get("top_k", 1.0)
        most = int(len(configs) * given) if isinstance(given, float) and given <= 1.0 else given
        if not isinstance(most, int):
            raise KernelError(f"top_k of {op} is {given!r}: expected an integer, or a share up to 1.0")
        if most < 1:
            raise KernelError(f"top_k of {op} is {given} and leaves none of {len(configs)} configs: expected one")
        if len(kept) > most:
            kept = sorted(kept, key=lambda config: model(**named, **kwargs, **config.all_kwargs()))[:most]
    return kept
