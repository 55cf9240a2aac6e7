"""Converts between `triton.Config`s and this package's configs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.errors import ConfigError
from tuner.kernel.config import Config, Value

COMPILERS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
"""Parameters of a `triton.Config` that belong to the compiler, not to the kernel."""
_DEFAULTS = {"num_ctas": 1}
"""Parameters that are left out at Triton's own default."""


class ConfigList:
    """The configs of a kernel, in the user's order.

    Attributes:
        listed: the `triton.Config`s, each once.
    """

    def __init__(self, kernel: str, configs: Sequence[Any] | Mapping[str, Sequence[Any]] | None) -> None:
        """Take a list as for `triton.autotune`, or a mapping from parameters to values that are all combined.

        Without any config there is one, Triton's own default.

        Raises:
            ConfigError: an entry is no config, a value cannot be stored, or two configs cannot be distinguished.
        """
        self._kernel = kernel
        self._known: dict[Config, Any] = {}
        listed = list(_combined(kernel, configs)) if isinstance(configs, Mapping) else list(configs or ())
        for config in listed or [_triton_config({})]:
            mine = self.of(config)
            before = self._known.setdefault(mine, config)
            if before != config:
                raise ConfigError(
                    f"{mine}: two configs differ in nothing that is kept: give them a parameter that does"
                )
        self.listed: tuple[Any, ...] = tuple(self._known.values())

    def __len__(self) -> int:
        return len(self.listed)

    def of(self, config: Any) -> Config:
        """Convert a `triton.Config`, without its pre_hook; ConfigError where that cannot be."""
        if not hasattr(config, "all_kwargs"):
            raise ConfigError(f"{self._kernel}: {config!r} is no config: expected a triton.Config")
        given = config.all_kwargs()
        pairs = {name: value for name, value in given.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        return Config(self._kernel, **{name: self._kept(name, value) for name, value in pairs.items()})

    def add(self, config: Any) -> Config:
        """Convert and remember a config that is not listed, for instance a default."""
        mine = self.of(config)
        self._known.setdefault(mine, config)
        return mine

    def __contains__(self, config: Config) -> bool:
        return config in self._known

    def find(self, config: Config) -> Any:
        """Return the `triton.Config` of a config; for one that was never listed, build it from the parameters."""
        if config in self._known:
            return self._known[config]
        compilers = {name: config[name] for name in COMPILERS if name in config}
        return _triton_config({name: value for name, value in config.pairs if name not in COMPILERS}, **compilers)

    def rank(self, config: Config) -> int:
        """Return a config's position in the user's list; unlisted configs come last."""
        order = list(self._known)
        return order.index(config) if config in self._known else len(order)

    def _kept(self, name: str, value: Any) -> Value:
        """Convert a value to one that tables can hold; other kinds of values become words that identify them."""
        if type(value).__name__ == "constexpr":
            value = value.value
        if isinstance(value, (int, str)):
            return value
        if value is None or isinstance(value, float) or type(value).__name__ == "dtype":
            return str(value)
        if isinstance(value, (tuple, list)):
            return ",".join(str(self._kept(name, part)) for part in value)
        if hasattr(value, "__qualname__") and hasattr(value, "__module__"):  # a function, jit ones too
            return f"{value.__module__}.{value.__qualname__}"
        raise ConfigError(
            f"{self._kernel}: {name} of a config is {value!r}: expected a number, a boolean, a string, a dtype, a "
            "function, None, or a tuple of such"
        )


def _combined(kernel: str, space: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
    listed: dict[str, tuple[Any, ...]] = {}
    for name, values in space.items():
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise ConfigError(f"{kernel}: the space gives {name} as {values!r}: expected its values, ({values!r},)")
        listed[name] = tuple(values)
        if not listed[name]:
            raise ConfigError(f"{kernel}: the space gives {name} no value: expected at least one, or leave it out")
    for values in itertools.product(*listed.values()):
        pairs = dict(zip(space, values, strict=True))
        compilers = {name: pairs.pop(name) for name in COMPILERS if name in pairs}
        yield _triton_config(pairs, **compilers)


def _triton_config(kwargs: Mapping[str, Any], **compilers: Any) -> Any:
    import triton

    return triton.Config(dict(kwargs), **compilers)
