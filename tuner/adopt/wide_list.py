"""The configs of a library's list, and their neighbours, which `tuner run --widen` tries and lookups serve."""

from __future__ import annotations

import functools
from typing import Any

from tuner.kernel.config import Config
from tuner.tuned.triton_configs import ConfigList

_MOST_WARPS = 32


class WideList(ConfigList):
    """A list that also knows its configs' neighbours. They are made when a config is asked for that is not listed."""

    @functools.cached_property
    def neighbours(self) -> tuple[Any, ...]:
        """The `triton.Config`s with half and twice the warps, a stage less and a stage more, that are not listed."""
        import triton

        found: dict[Config, Any] = {}
        for each in self.listed:
            fixed = {name: getattr(each, name) for name in ("num_ctas", "maxnreg", "pre_hook", "ir_override")}
            for warps in (each.num_warps // 2, each.num_warps, each.num_warps * 2):
                for stages in (each.num_stages - 1, each.num_stages, each.num_stages + 1):
                    if 1 <= warps <= _MOST_WARPS and stages >= 1:
                        config = triton.Config(each.kwargs, num_warps=warps, num_stages=stages, **fixed)
                        found.setdefault(self.of(config), config)
        for config in found.values():
            self.add(config)
        return tuple(config for config in found.values() if config not in self.listed)

    def __contains__(self, config: Config) -> bool:
        return super().__contains__(config) or bool(self.neighbours and super().__contains__(config))

    def find(self, config: Config) -> Any:
        """Return the `triton.Config` of a config, of a neighbour with the hook of the listed one."""
        self.__contains__(config)  # makes a neighbour known
        return super().find(config)
