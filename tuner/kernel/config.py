"""A config: one kernel's meta-parameters, with num_warps and num_stages among them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner import files
from tuner.errors import ConfigError

Value = int | str | bool
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_SHORT = {
    "BLOCK_SIZE_N_REST": "rest",
    "EPILOGUE_PARTS": "parts",
    "GROUP_SIZE_M": "group",
    "LOADS": "loads",
    "SPLIT_K": "split",
    "launch_pdl": "pdl",
    "num_stages": "stages",
    "num_warps": "warps",
}


@dataclass(frozen=True, slots=True, init=False)
class Config(Mapping[str, Value]):
    """A kernel's name and its parameters, immutable and hashable; reads like a dict of the parameters.

    >>> Config("pointer", BLOCK_SIZE_M=128, num_warps=8)["num_warps"]
    8

    Attributes:
        kernel: the kernel's name.

    Raises:
        ConfigError: a parameter is no int, bool or str.
    """

    kernel: str
    _values: dict[str, Value]
    _hash: int | None = field(repr=False)

    def __init__(self, kernel: str, /, **parameters: Value) -> None:
        self._set(kernel, parameters, dict(sorted(parameters.items())))

    def _set(self, kernel: str, unchecked: Mapping[str, Value], values: dict[str, Value]) -> None:
        for name, value in unchecked.items():
            if not isinstance(value, (int, str)):
                raise ConfigError(f"{kernel}: {name} must be an integer, a boolean or a string, got {value!r:.60}")
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_hash", None)

    @property
    def pairs(self) -> tuple[tuple[str, Value], ...]:
        """The parameters as (name, value), sorted by name."""
        return tuple(self._values.items())

    # Rules read parameters a million times for each search space, so Mapping's slower methods are not used.

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or `default` when it is missing."""
        return self._values.get(name, default)

    def integer(self, name: str, default: int = 0) -> int:
        """Return a parameter as an int, or `default` when it is missing."""
        return int(self._values.get(name, default))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.kernel, self.pairs)))
        return self._hash  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self.kernel == other.kernel and self._values == other._values

    def __lt__(self, other: Config) -> bool:
        """Compare in canonical order: by kernel, then by parameters; a parameter's numbers come before its words."""
        if self.kernel != other.kernel:
            return self.kernel < other.kernel
        try:
            return self.pairs < other.pairs
        except TypeError:  # a parameter is a number in one config and a word in the other, for instance 8 and "None"
            return _ordered(self.pairs) < _ordered(other.pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.kernel, dict(self._values)))

    def __str__(self) -> str:
        return f"{self.kernel}({', '.join(f'{name}={value}' for name, value in self._values.items())})"

    def replace(self, **parameters: Value) -> Config:
        """Return a copy with some parameters changed or added."""
        values = {**self._values, **parameters}
        if len(values) > len(self._values):
            values = dict(sorted(values.items()))
        copy = object.__new__(Config)
        copy._set(self.kernel, parameters, values)
        return copy

    @property
    def label(self) -> str:
        """The short form, "pointer 128x256x64 group 8 stages 3 warps 8", without parameters that are 0 or false."""
        tile = "x".join(str(self[name]) for name in _TILE if name in self)
        rest = [
            _SHORT.get(name, name) if value is True else f"{_SHORT.get(name, name)} {value}"
            for name, value in self._values.items()
            if name not in _TILE and value not in (0, "")
        ]
        return " ".join(part for part in (self.kernel, tile, *rest) if part)

    @property
    def parameters_json(self) -> str:
        """The parameters as canonical JSON: sorted keys, no spaces."""
        return json.dumps(dict(self._values), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A config's name on disk: 16 hex digits of SHA-256 over the kernel's name and the canonical JSON."""
        return hashlib.sha256(f"{self.kernel}{self.parameters_json}".encode()).hexdigest()[:16]

    @staticmethod
    def from_json(kernel: str, parameters: str) -> Config:
        """Read what `parameters_json` wrote.

        Raises:
            ConfigError: the text is no JSON object of integers, booleans and strings.
        """
        try:
            loaded = files.parse_json(parameters)
        except ValueError as e:
            raise ConfigError(
                f'{kernel}: parameters are not JSON: {parameters!r:.80}: expected for instance {{"num_warps": 4}}'
            ) from e
        if not isinstance(loaded, dict):
            raise ConfigError(f"{kernel}: expected a JSON object of parameters, got {parameters!r:.80}")
        return Config(kernel, **loaded)


def _ordered(pairs: tuple[tuple[str, Value], ...]) -> list[tuple[str, bool, Value]]:
    return [(name, isinstance(value, str), value) for name, value in pairs]


def _rebuild(kernel: str, parameters: dict[str, Value]) -> Config:
    return Config(kernel, **parameters)
