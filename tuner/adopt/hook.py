"""Where Triton's `Autotuner` asks which config a call takes: methods that run for a new key, and at no other time.

`Autotuner.run` looks for its key in `cache`. Only where it is not there are configs pruned, read from Triton's cache on
disk, or measured. Here the list of configs is cut to the one that was chosen, which is then not measured. Triton itself
keeps it in `cache`, so that a call of a known key runs no line of this package. Subclasses are reached as long as
their `run` prunes and measures by these methods.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from tuner.adopt.kernel import triton_key, zeroes
from tuner.launch import compat
from tuner.lookup import lookup as lookups
from tuner.tuned.first_launch import OncePerKey

Choose = Callable[[Any, Mapping[str, Any]], Any]
"""Given an `Autotuner` and the keyword arguments of the call, whose positional ones are its `nargs`, returns the
`triton.Config` of the call, or None where the autotuner decides as if nobody had asked."""
_MARK = "chosen_by_tuner"
_lock = threading.Lock()
_choosers: list[Choose] = []
_originals: dict[str, tuple[Any, Any]] = {}
"""By name, a method of Triton's and what took its place."""
_served: WeakSet[Any] = WeakSet()
_zeroed: WeakKeyDictionary[Any, OncePerKey] = WeakKeyDictionary()


def ask(choose: Choose) -> None:
    """Ask a function about each new key of every `Autotuner`, before those that were given earlier."""
    with _lock:
        if not _choosers:
            _put()
        _choosers.insert(0, choose)


def stop_asking(choose: Choose) -> None:
    """Take a function back; with the last one, Triton's methods are its own again. What was chosen is forgotten."""
    with _lock:
        if choose in _choosers:
            _choosers.remove(choose)
            if not _choosers:
                for name, (original, ours) in _originals.items():
                    if vars(compat.Autotuner).get(name) is ours:  # else another has taken its place since
                        setattr(compat.Autotuner, name, original)
    forget()


def forget() -> None:
    """Let every autotuner ask anew, but for keys whose configs it measured itself."""
    for autotuner in list(_served):
        for key in [key for key, config in tuple(autotuner.cache.items()) if _is_chosen(config)]:
            autotuner.cache.pop(key, None)


def _is_chosen(config: Any) -> bool:
    return hasattr(config, _MARK)


def _put() -> None:
    """Put methods in the place of Triton's."""
    prune, from_disk, bench = (getattr(compat.Autotuner, name) for name in compat.AUTOTUNER_ASKS)

    @functools.wraps(prune)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        _give_back(self)
        for choose in tuple(_choosers):
            if (config := choose(self, kwargs)) is not None:
                return [_chosen(self, config, kwargs)]
        return prune(self, kwargs)

    @functools.wraps(from_disk)
    def check_disk_cache(self: Any, key: Any, configs: list[Any], bench_fn: Callable[[], Any]) -> Any:
        if any(map(_is_chosen, configs)):
            bench_fn()  # measures nothing, see below
            return True
        return from_disk(self, key, configs, bench_fn)

    @functools.wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        return [0.0, 0.0, 0.0] if _is_chosen(config) else bench(self, *args, config=config, **meta)

    ours = zip((prune, from_disk, bench), (prune_configs, check_disk_cache, _bench), strict=True)
    _originals.update(zip(compat.AUTOTUNER_ASKS, ours, strict=True))
    for name, (_, method) in _originals.items():
        setattr(compat.Autotuner, name, method)


def _chosen(autotuner: Any, config: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return a copy of a config that tells that nobody measured it here."""
    chosen = copy.copy(config)
    setattr(chosen, _MARK, True)
    _served.add(autotuner)
    if kwargs.get("warmup") is False and zeroes(autotuner):
        # After it has measured, Triton leaves the arguments of `reset_to_zero` zeroed; earlier ones do so here, too.
        named = {**autotuner.nargs, **kwargs}
        is_due = _zeroed.setdefault(autotuner, OncePerKey()).is_due(triton_key(autotuner, named))
        if is_due and _measures_no_single_config():
            autotuner.pre_hook({**named, **chosen.all_kwargs()}, reset_only=True)
        if not is_due and not _measures_no_single_config():
            autotuner.pre_hook = _Skipping(autotuner)
    return chosen


class _Skipping:
    """Takes the place of an autotuner's `pre_hook` for one call, by which Triton would zero anew."""

    def __init__(self, autotuner: Any) -> None:
        self._autotuner, self.own = autotuner, autotuner.pre_hook

    def __call__(self, kwargs: Any, reset_only: bool = False) -> Any:
        _give_back(self._autotuner)
        return None if reset_only else self.own(kwargs)


def _give_back(autotuner: Any) -> None:
    """Give an autotuner its `pre_hook` back, also where a subclass did not call what took its place."""
    if isinstance(hook := vars(autotuner).get("pre_hook"), _Skipping):
        autotuner.pre_hook = hook.own


@functools.cache
def _measures_no_single_config() -> bool:
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 8)


lookups.on_change(forget)
