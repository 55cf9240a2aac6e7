"""Reads what was typed for a kernel, a target and a config.

What cannot be meant is a UsageError; a problem that a kernel does not serve on a device is a KernelError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.errors import BrokenKernelError, ConfigError, DeviceError, KernelError, UsageError, in_short
from tuner.hardware import device as devices
from tuner.hardware.device import KNOWN, MODELS, Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.lookup import device_names
from tuner.lookup.lookup import resolver
from tuner.problem import Problem

_WORDS: dict[str, Value] = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A config, and how it was chosen.

    Attributes:
        config: a config of the kernel.
        rule: "given", a match rule ("exact", "family" ...), or "default" for the kernel's own formula.
        remark: what a reader should know besides, "" for nothing: a rule that would not try it, another kernel's match.
    """

    config: Config
    rule: str
    remark: str = ""


def find_kernel(name: str) -> KernelSpec:
    """The registered kernel of a name or of "op/name"."""
    specs = registry.specs()
    found = [spec for (op, kernel), spec in sorted(specs.items()) if name in (kernel, f"{op}/{kernel}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"several ops have a kernel {name!r}: type {' or '.join(f'{s.op}/{s.name}' for s in found)}")
    if own := [kernel for op, kernel in sorted(specs) if op == name]:
        raise UsageError(f"{name} is an op: name one of its kernels, {', '.join(own)}")
    known = ", ".join(f"{op}/{kernel}" for op, kernel in sorted(specs))
    raise UsageError(f"unknown kernel {name!r}: known are {known or 'none'}")


def find_target(text: str | None) -> Device:
    """The device of a target such as cuda:90, hip:gfx942, sm_90 or h200; without one, this machine's GPU or an H200."""
    if text is None:
        try:
            here = devices.current()
        except DeviceError:
            return KNOWN["sm_90"]
        return KNOWN["sm_90"] if here.is_interpreter else here
    kind, _, arch = text.partition(":")
    device = KNOWN.get({"cuda": f"sm_{arch}", "hip": arch}.get(kind, text))
    if device is not None and (kind != "hip" or device.vendor == "amd"):
        return device
    targets = ", ".join(map(target_of, KNOWN.values()))
    unknown = UsageError(f"unknown target {text!r}: known are {targets}, and GPUs by name, such as h200")
    try:
        named = device_names.named(text, ())
    except DeviceError as e:
        several = len(device_names.matching([model.slug for model in MODELS], text)) > 1
        raise (UsageError(str(e)) if several else unknown) from e
    if named.is_interpreter:
        raise unknown
    return named


def target_of(device: Device) -> str:
    """A device's target as one types it: "cuda:90", "hip:gfx942"."""
    return f"hip:{device.arch}" if device.vendor == "amd" else f"cuda:{device.arch.removeprefix('sm_')}"


def choose(spec: KernelSpec, problem: Problem, device: Device) -> Chosen:
    """The config that a lookup gives, where it is one of this kernel; else the one of the kernel's own formula."""
    check_served(spec, problem, device)
    _, _, decision = resolver().explanation(problem, device)
    match = decision.match
    if match.kernel == spec.name:
        return Chosen(match.config, match.rule)
    remark = f"a lookup gives another kernel's config ({match.rule}): {match.config}"
    return Chosen(registry.ask(spec, "default_config", problem, device), "default", remark)


def read_config(text: str, spec: KernelSpec, problem: Problem, device: Device) -> Chosen:
    """A config from its JSON ("parameters_json"), or from pairs NAME=VALUE, which change the config of `choose`."""
    usual = choose(spec, problem, device).config
    space: SearchSpace = registry.ask(spec, "space", problem, device)
    if text.lstrip().startswith("{"):
        config = Config.from_json(spec.name, text)
    else:
        values = {name: _value(value) for name, value in _pairs(text)}
        config = usual.replace(**values)
    # Where parameters follow from others (the kernel padded, for one), only the space's rules know all of them.
    runtime = (name for name in config if name in spec.runtime_parameters)
    named = {*space.axes, *space.options, *usual, *runtime}
    if unknown := sorted(config.keys() - named):
        raise ConfigError(f"{spec.name}: unknown parameter {unknown[0]!r}: known are {', '.join(sorted(named))}")
    try:
        refused = space.rejection(config, fatal_only=True)
        unwise = None if refused else space.rejection(config)
    except BrokenKernelError as e:
        raise ConfigError(f"{spec.name}: not a config: {config} ({in_short(e.__cause__ or e)})") from e
    if refused and not space.axes and (listed := space.configs()):  # as triton.autotune's configs
        nearest = min(listed, key=lambda one: len({*one.pairs} ^ {*config.pairs}))
        raise ConfigError(f"{config} is none of the {len(listed)} listed configs: the nearest is {nearest}")
    if refused:
        raise ConfigError(f"{config} cannot run on {target_of(device)}: {refused}")
    if missing := sorted(name for name in space.odd_parameters(config) if name not in config):
        raise ConfigError(f"{spec.name}: {missing[0]} is missing: expected {', '.join(sorted(space.axes))}")
    return Chosen(config, "given", f"a search would not try it: {unwise}" if unwise else "")


def check_served(spec: KernelSpec, problem: Problem, device: Device) -> None:
    """Refuse a problem that a kernel does not serve on a device."""
    if reason := registry.ask(spec, "unserved", problem, device):
        raise KernelError(f"{spec.op}/{spec.name} does not serve {problem} on {target_of(device)}: {reason}")


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split the text of a config; values hold neither commas nor spaces."""
    example = "BLOCK_SIZE_M=128,num_warps=8"
    pairs: list[tuple[str, str]] = []
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise UsageError(f"a config: not a pair NAME=VALUE: {part!r}: expected for instance {example}")
        if name in dict(pairs):
            raise UsageError(f"a config: {name} is there twice: expected each name once, for instance {example}")
        pairs.append((name, value))
    if not pairs:
        raise UsageError(f"a config is empty: expected for instance {example}")
    return pairs


def _value(text: str) -> Value:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return _WORDS.get(text.lower(), text)
