"""Runs a model's own code on the CPU with random numbers, to learn what it computes."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import nn

from tuner.models.class_patch import CHOICE, original_class

Found = TypeVar("Found")
_MOST = 8
"""With how many modules that were tried another is compared: models have few kinds, and maybe thousands of one."""
_PLAIN = (bool, int, float, str)
_KEPT = (list, dict, set)
_SMALL = 1 << 20
"""The elements of buffers that are copied."""
_threads_lock = threading.Lock()
"""While it is held, a thread that starts may take what is set here."""


class Trials(Generic[Found]):
    """What modules of a model were found to compute, so that of those that are alike one is tried.

    It serves one walk through a model, which changes nothing that a trial reads.
    """

    def __init__(self, find: Callable[[Any], Found], unread: Collection[str] = ()) -> None:
        """Keep what tries a module, and the names of attributes that it reads neither of a module nor of a child."""
        self._find, self._unread = find, unread
        self._tried: deque[tuple[nn.Module, object, Found]] = deque(maxlen=_MOST)

    def of(self, module: nn.Module, kind: object, replaced: Collection[str]) -> Found:
        """What a module computes: as a module that was tried before and is like it, or by a trial.

        Args:
            module: What to try.
            kind: What a trial reads of the parameters and children that it replaces.
            replaced: Their names.
        """
        for tried, its_kind, found in self._tried:
            if its_kind == kind and _are_modules_alike(tried, module, replaced, self._unread):
                return found
        found = self._find(module)
        self._tried.append((module, kind, found))
        return found


def _are_modules_alike(one: nn.Module, other: nn.Module, replaced: Collection[str], unread: Collection[str]) -> bool:
    """Whether forwards of both read the same, but for parameters and children, and for attributes, of some names."""
    if original_class(one) is not original_class(other):
        return False
    state, its_state = ({**each.__dict__, **dict.fromkeys((CHOICE, *unread))} for each in (one, other))
    children, its_children = (_without(each.pop("_modules"), replaced) for each in (state, its_state))
    for each in (state, its_state):
        each["_parameters"] = _without(each["_parameters"] or {}, replaced)
    if state.keys() != its_state.keys() or list(children) != list(its_children):
        return False
    return all(_are_alike(value, its_state[name]) for name, value in state.items()) and all(
        a is b or (a is not None and b is not None and _are_modules_alike(a, b, (), unread))
        for a, b in zip(children.values(), its_children.values(), strict=True)
    )


def _without(named: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: each for name, each in named.items() if name not in names}


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two attributes are the same, equal numbers or strings, or collections of such."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if type(one) in (dict, OrderedDict):
        return list(one) == list(other) and all(map(_are_same, one.values(), other.values()))
    return _are_same(one, other) or (type(one) is set and not (one or other))


def _are_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _PLAIN and one == other)


class Called(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Stands for a child of a module that is tried."""

    def __init__(self, name: str, call: Any) -> None:
        super().__init__()
        self._name, self._call = name, call

    def forward(self, *args: object, **kwargs: object) -> object:
        """Tell that it is called, and give what is said to."""
        return self._call(self._name, *args, **kwargs)


class Unread:
    """Stands for an argument of a module that is tried, which is not to read it."""

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("an argument was read")

    __bool__ = __eq__ = __len__ = __iter__ = __getitem__ = _refuse


def copy_with(module: nn.Module, children: dict[str, nn.Module | None], **changed: object) -> nn.Module:
    """A copy of a module before it was patched, with other children, and with some attributes changed.

    Collections and small buffers are copied, so that a trial leaves nothing in them.
    """
    state = {name: copy.copy(value) if isinstance(value, _KEPT) else value for name, value in module.__dict__.items()}
    state["_buffers"] = {
        name: each.clone() if each is not None and each.numel() <= _SMALL else each
        for name, each in module._buffers.items()
    }
    original = original_class(module)
    copied: nn.Module = original.__new__(original)
    copied.__dict__.update(state, _modules=children, **changed)
    return copied


def run_on_cpu(function: Callable[..., object], *args: object) -> object:
    """What a function of a model returns without gradients and autocast; None where it raises.

    Args:
        function: A model's own code, which may raise anything: then torch keeps the layer.
        args: Its arguments, on the CPU.
    """
    try:
        # Tensors of inference mode do not count their changes.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
            return function(*args)
    except Exception:  # noqa: BLE001  see `function`
        return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute in the calling thread alone: waking other cores takes longer than all of a trial.

    On a host whose cores are busy, where several processes start at once, they keep it waiting for tens of
    milliseconds. A thread has a number of its own, and one that starts takes what was set last, in any thread: so
    another thread sets that again.
    """
    own = torch.get_num_threads()
    with ThreadPoolExecutor(1) as another:
        with _threads_lock:
            last = another.submit(torch.get_num_threads).result()
            torch.set_num_threads(1)
            another.submit(torch.set_num_threads, last).result()
        try:
            yield
        finally:
            with _threads_lock:
                torch.set_num_threads(own)
                another.submit(torch.set_num_threads, last).result()
