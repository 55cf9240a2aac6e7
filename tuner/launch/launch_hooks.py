"""Triton's hooks around a launch, by which profilers listen."""

from __future__ import annotations

from triton import knobs

RUNTIME = knobs.runtime
ENTER, LEAVE = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook
ENTERING, LEAVING = (getattr(hook, "calls", () if hook is None else (hook,)) for hook in (ENTER, LEAVE))


def has_launch_hooks() -> bool:
    """Whether a profiler or another hook listens to launches; then Triton's own path must launch."""
    return (
        RUNTIME.launch_enter_hook is not ENTER
        or RUNTIME.launch_exit_hook is not LEAVE
        or bool(ENTERING)
        or bool(LEAVING)
    )
