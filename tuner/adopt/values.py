"""The arguments of a captured call, as JSON holds them: what they were, and of integers what they held; floats never.

Numbers, booleans, words and None stand for themselves. Everything else is an object with one name, its kind:
`tensor`, `descriptor`, `tuple`, `named` (a named tuple: its class and its values), `dtype`, `constexpr`, `float`
(infinity and NaN) and `object` (a function or a member of an enum, by where it is imported from).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from tuner.errors import KernelError, in_short
from tuner.problem import dtype as dtypes
from tuner.problem.generic_key import canonical
from tuner.tuned.source import function_below

MOST_VALUES = 1 << 18
"""How many elements of integer tensors one call keeps. Lengths and indices have far fewer, packed weights more."""
_DESCRIPTOR = ("shape", "strides", "block_shape", "padding", "round_f32_to_tf32")
_PLAIN = (bool, int, str)


class Encoder:
    """Writes the values of one call.

    Attributes:
        storages: what the call's tensors lie in, each once: its bytes, its address modulo 16, and which dtype fills it.
    """

    def __init__(self) -> None:
        self.storages: list[list[Any]] = []
        self._numbers: dict[int, int] = {}
        self._left = MOST_VALUES

    def value(self, value: Any) -> Any:  # noqa: PLR0911  one a kind of value
        """Return a value as JSON holds it.

        Raises:
            KernelError: it is of no kind that can be made again.
        """
        if value is None or type(value) in _PLAIN:
            return value
        if hasattr(value, "untyped_storage"):
            return {"tensor": self._tensor(value)}
        if hasattr(value, "base") and hasattr(value, "block_shape") and hasattr(value, "strides"):
            facts = {name: _plain(getattr(value, name)) for name in _DESCRIPTOR if hasattr(value, name)}
            return {"descriptor": {"base": self._tensor(value.base), **facts}}
        if type(value).__name__ == "constexpr":
            return {"constexpr": self.value(value.value)}
        if type(value).__name__ == "dtype":
            return {"dtype": str(value) if str(value).startswith("torch.") else f"triton.{value.name}"}
        if isinstance(value, (tuple, list)):
            values = [self.value(each) for each in value]
            return {"named": [_place(type(value)), *values]} if hasattr(value, "_fields") else {"tuple": values}
        if isinstance(value, Enum) or function_below(value) is not None:
            return {"object": _place(value)}
        if (number := canonical(value)) is None:
            raise KernelError(f"{type(value).__name__} is no kind of argument that can be made again")
        is_word = isinstance(number, str) and not isinstance(value, str)  # infinity and NaN
        return {"float": number} if is_word else number

    def _tensor(self, tensor: Any) -> dict[str, Any]:
        storage = tensor.untyped_storage()
        name, holds_floats = dtypes.name_of(tensor.dtype), tensor.is_floating_point() or tensor.is_complex()
        number = self._numbers.setdefault(storage.data_ptr(), len(self.storages))
        if number == len(self.storages):
            self.storages.append([storage.nbytes(), storage.data_ptr() % 16, name])
        elif holds_floats and not dtypes.to_torch(self.storages[number][2]).is_floating_point:
            self.storages[number][2] = name
        found: dict[str, Any] = {
            "dtype": name,
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "storage": number,
            "offset": tensor.storage_offset(),
        }
        if not holds_floats and tensor.numel() <= self._left:
            self._left -= tensor.numel()
            found["values"] = tensor.detach().reshape(-1).tolist()
        return found


class Decoder:
    """Makes the values of one call again, on torch's current device.

    Attributes:
        unkept: the integer tensors whose values were not kept; they hold zeros.
        kept: the integer tensors whose values were kept.
        floats: the memory that holds floats of more than 8 bits, flat.
    """

    def __init__(self, storages: Sequence[Sequence[Any]]) -> None:
        """Allocate the call's memory, filled with N(0, 1); with zeros where it holds integers."""
        self._storages = [_Storage(*facts) for facts in storages]
        self.floats = [each.flat for each in self._storages if _is_wide_float(each.flat)]
        self.unkept: list[Any] = []
        self.kept: list[Any] = []

    def value(self, value: Any) -> Any:  # noqa: PLR0911
        """Return the value that JSON holds.

        Raises:
            KernelError: an object is not there any more.
            LookupError, TypeError, ValueError: it is no such value.
        """
        if not isinstance(value, Mapping):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return self._tensor(content)
        if kind == "descriptor":
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(**{**content, "base": self._tensor(content["base"])})
        if kind == "tuple":
            return tuple(self.value(each) for each in content)
        if kind == "named":
            place, *values = content
            return _object(place)(*map(self.value, values))
        if kind == "object":
            return _object(content)
        if kind == "float":
            return float(content)
        if kind == "constexpr":
            from triton.language import constexpr

            return constexpr(self.value(content))
        if kind == "dtype":
            return _dtype(content)
        raise ValueError(f"it has an argument of the kind {kind!r}")

    def _tensor(self, facts: Mapping[str, Any]) -> Any:
        storage = self._storages[facts["storage"]]
        tensor = storage.tensor(dtypes.to_torch(facts["dtype"]), facts["offset"], facts["shape"], facts["strides"])
        if "values" in facts:
            self.kept.append(tensor)
            if not tensor.is_meta:
                fill(tensor, facts["values"])
        elif not (tensor.is_floating_point() or tensor.is_complex()):
            self.unkept.append(tensor)
        return tensor


class _Storage:
    """Memory of a number of bytes at an address of the same remainder by 16."""

    def __init__(self, nbytes: int, misaligned: int, fills: str) -> None:
        import torch

        self._skipped = misaligned
        self._memory = torch.empty(nbytes + misaligned, dtype=torch.uint8).untyped_storage()
        dtype = dtypes.to_torch(fills)
        self.flat = self.tensor(dtype, 0, (nbytes // dtype.itemsize,), (1,))
        if not self.flat.is_meta:
            _randomize(self.flat)

    def tensor(self, dtype: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        import torch

        if self._skipped % dtype.itemsize:
            raise ValueError(f"a {dtypes.name_of(dtype)} at an address of remainder {self._skipped} by 16")
        first = self._skipped // dtype.itemsize + offset
        return torch.empty(0, dtype=dtype).set_(self._memory, first, tuple(shape), tuple(strides))


def fill(tensor: Any, values: Sequence[Any]) -> None:
    """Write values in the order of a tensor's elements; elements that share memory have one value."""
    import torch

    given = torch.tensor(values, dtype=tensor.dtype).reshape(tensor.shape)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, given = tensor.narrow(axis, 0, 1), given.narrow(axis, 0, 1)
    tensor.copy_(given)


def _is_wide_float(tensor: Any) -> bool:
    return bool((tensor.is_floating_point() or tensor.is_complex()) and tensor.element_size() > 1)


def _randomize(tensor: Any) -> None:
    """Fill a flat tensor with N(0, 1), or with zeros where it holds integers."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        tensor.zero_()
    elif not _is_wide_float(tensor):
        for part in tensor.split(1 << 24):
            part.copy_(torch.randn(part.shape).to(tensor.dtype))
    else:
        tensor.normal_()


def _plain(value: Any) -> Any:
    return [int(each) for each in value] if isinstance(value, (tuple, list)) else value


def _place(value: Any) -> str:
    """Return where an object is imported from, which must lead to it again."""
    if isinstance(value, Enum):
        place = f"{type(value).__module__}:{type(value).__qualname__}.{value.name}"
    else:
        plain = value if isinstance(value, type) else function_below(value)
        assert plain is not None
        place = f"{plain.__module__}:{plain.__qualname__}"
    try:
        found = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is not value:
        raise KernelError(f"{place} cannot be imported under this name")
    return place


def _object(place: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError) as e:
        raise KernelError(f"its argument {place} is not there any more ({in_short(e)})") from e


def _dtype(name: str) -> Any:
    if name.startswith("torch."):
        return dtypes.to_torch(name.removeprefix("torch."))
    import triton.language as tl

    return tl.dtype(name.removeprefix("triton."))
