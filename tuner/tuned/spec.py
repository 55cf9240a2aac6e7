"""Makes the KernelSpec of a decorated kernel for `tuner run`, tables and lookups."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from tuner import reference
from tuner.errors import KernelError, ProblemError, TunerError, in_short
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.launch import compile_cache
from tuner.problem import Problem, generic_key
from tuner.problem import dtype as dtypes
from tuner.tuned import accuracy, user_errors
from tuner.tuned.arguments import memory_of
from tuner.tuned.inputs import CallInputs
from tuner.tuned.tuned_kernel import TunedKernel


def spec_of(kernel: TunedKernel) -> KernelSpec:
    """Return the KernelSpec that follows from what the decorator was given."""
    options = kernel.options
    name = options.name

    def unlisted(config: Config, problem: Problem, device: Device) -> str | None:
        if config in kernel.config_list or config == kernel.default_config(problem, device):
            return None
        if config in kernel.config_list:  # the default made known what `early_config_prune` returns
            return None
        return "it is none of the configs that the decorator lists"

    def pruned(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
        kept = kernel.pruned_for_call(problem)
        return None if kept is None or config in kept else "prune_configs_by leaves it out for these arguments"

    rules = (
        Rule("configs", "the decorator's list", unlisted, fatal=True),
        Rule("pruned", "the decorator's prune_configs_by", pruned, fatal=True),
    )

    def space(problem: Problem, device: Device) -> SearchSpace:
        def candidates(_point: Config, _problem: Problem, _device: Device) -> list[Config]:
            return [kernel.config_list.of(config) for config in kernel.candidates(problem)]

        return SearchSpace(name, problem, device, {}, rules, expand=candidates)

    return KernelSpec(
        op=name,
        name=name,
        version=options.version,
        supports=lambda problem, _device: _unsupported(kernel, problem),
        space=space,
        default_config=kernel.default_config,
        make_inputs=lambda problem, device, seed: _prepared(kernel, problem, device, seed),
        launch=lambda inputs, config: launch(kernel, inputs, config),
        reference=lambda inputs: _expected(kernel, inputs),
        tolerance=lambda _problem: 1.0,
        compile=lambda problem, config: _compile(kernel, problem, config),
        compile_class=lambda problem, config: _compile_class(kernel, problem, config),
        simplicity=lambda config: (kernel.config_list.rank(config),),
        # Problems are of a kernel whose hash begins with their source, so it comes first; 64 digits in all.
        source_hash=lambda: kernel.source_hash[: 64 - len(kernel.checks_hash)] + kernel.checks_hash,
        former_source_hash=lambda: _former_source_hash(kernel),
        runtime_parameters=tuple(sorted(set(kernel.arg_names) - kernel.signature.constexprs)),
        unmeasurable=lambda problem: _unmeasurable(kernel, problem),
        has_inputs=lambda: kernel.arguments_factory.make_inputs is not None,
        read=lambda cells: _read(kernel, cells),
        borrows=options.default is None,
        origin=kernel.origin,
    )


def _former_source_hash(kernel: TunedKernel) -> str:
    try:
        return hashlib.sha256(inspect.getsource(kernel.base_fn).encode()).hexdigest()
    except OSError:
        return "no file holds it"


def launch(kernel: TunedKernel, inputs: CallInputs, config: Config) -> None:
    """Launch once by a config, with the preparation and hooks of `triton.autotune`'s measurements."""
    chosen, arguments = kernel.config_list.find(config), inputs.arguments
    meta = chosen.all_kwargs()
    full = {**inputs.named, **arguments.launch_kwargs(), **meta}
    inputs.prepare()
    if chosen.pre_hook is not None:
        chosen.pre_hook(full)
    if kernel.options.pre_hook is not None:
        kernel.options.pre_hook(full)
    try:
        kernel.fn.run(*arguments.args, **arguments.launch_kwargs(), **meta)
    except Exception as e:
        if kernel.options.post_hook is not None:
            kernel.options.post_hook(full, exception=e)
        raise
    # A hook may restore what was written, which would leave nothing to compare.
    if kernel.options.post_hook is not None and not inputs.checking:
        kernel.options.post_hook(full, exception=None)
    inputs.checking = False


def _prepared(kernel: TunedKernel, problem: Problem, device: str, seed: int) -> CallInputs:
    arguments = kernel.arguments_factory.made(problem, device, seed)
    return CallInputs(arguments, kernel.signature.named(arguments.args, arguments.kwargs), kernel.options)


def _expected(kernel: TunedKernel, inputs: CallInputs) -> dict[str, Any]:
    """Return the expected outputs by the user's reference, or without one, as the default config writes them."""
    op, compute = kernel.options.name, kernel.reference_function
    if compute is None:
        return expected_from_first_config(kernel, inputs)
    import torch

    inputs.prepare()
    try:
        expected = compute({**inputs.named, **inputs.arguments.held})
    except (TunerError, torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as e:
        # A user's function may raise anything. This problem then cannot be tuned, but others can.
        raise KernelError(f"the reference of {op} failed: {user_errors.said(compute, e)}") from e
    found = accuracy.by_name(op, expected, inputs.outputs)
    inputs.check_shapes(found)
    return found


def expected_from_first_config(kernel: TunedKernel, inputs: CallInputs) -> dict[str, Any]:
    """Return what the first config that runs writes, beginning with the default.

    Comparing with it shows that configs agree, not that they are right.

    Raises:
        KernelError: no config runs.
    """
    op, reasons = kernel.options.name, list[str]()
    for config in kernel.in_order(kernel.signature.problem(inputs.named)):
        inputs.poison()
        try:
            launch(kernel, inputs, config)
        except Exception as e:  # noqa: BLE001  a config that fails here fails its own trial too
            reasons.append(in_short(e))
        else:
            return inputs.written()
    raise KernelError(f"no config of {op} runs, the first for {reasons[0]}"[:500])


def _compile(kernel: TunedKernel, problem: Problem, config: Config) -> Any:
    arguments, chosen = kernel.arguments_factory.shaped(problem), kernel.config_list.find(config)
    meta = chosen.all_kwargs()
    if chosen.pre_hook is not None:
        named = kernel.signature.named(arguments.args, arguments.kwargs)
        chosen.pre_hook({**named, **arguments.launch_kwargs(warmup=True), **meta})
    compile_cache.install(kernel.fn)
    return kernel.fn.warmup(*arguments.args, grid=arguments.grid, **arguments.kwargs, **meta)


def _compile_class(kernel: TunedKernel, problem: Problem, config: Config) -> str:
    """Return what Triton specializes on: dtypes and alignments, constants, and the config."""
    arguments = kernel.arguments_factory.shaped(problem)
    signature = kernel.signature
    named = signature.named(arguments.args, arguments.kwargs)
    facts = {name: _specialization(kernel, name, value) for name, value in named.items()}
    return json.dumps([facts, dict(config.pairs)], sort_keys=True, separators=(",", ":"))


def _specialization(kernel: TunedKernel, name: str, value: Any) -> Any:
    memory = memory_of(value)
    if memory is not None:
        return [str(memory.dtype), memory is value and memory.data_ptr() % 16 == 0]
    if name in kernel.signature.constexprs or name not in kernel.arg_names:  # constants and compiler options
        return repr(value)
    if type(value) is int:
        specialized = kernel.signature.is_specialized(name)
        width = -(2**31) <= value < 2**31
        return [specialized and value == 1, specialized and value % 16 == 0, width]
    return type(value).__name__


def _unsupported(kernel: TunedKernel, problem: Problem) -> str | None:
    if not problem.is_keyed:
        return f"a problem of it is tuner.Problem.keyed({kernel.options.name!r}, ...)"
    if problem.source and not kernel.source_hash.startswith(problem.source):
        here = f"{kernel.origin} is {kernel.source_hash[:8]}"
        return f"the problem is of another source, {problem.source[:8]}: {here}"
    odd = [name for name, _ in problem.extras if "." not in name and name not in kernel.signature.key]
    return f"its key has no {odd[0]}: it is {', '.join(kernel.signature.key) or 'empty'}" if odd else None


def _unmeasurable(kernel: TunedKernel, problem: Problem) -> str | None:
    if kernel.current_call(problem) is not None:
        return None  # it is measured in this process, on the call's own arguments
    if not reference.is_importable(origin := kernel.origin):
        return f"{origin} cannot be imported by the processes that measure: define it at a module's top level"
    try:
        kernel.arguments_factory.shaped(problem)
    except KernelError as e:
        return str(e)
    return None


def _read(kernel: TunedKernel, cells: Mapping[str, str]) -> Problem:
    """Build a problem from cells by name: values of the key, `dtype`, and facts about arguments."""
    options = kernel.options
    known = (*kernel.signature.key, "dtype")
    facts = {f"{name}.{fact}" for name in kernel.arg_names for fact in generic_key.FACTS}
    for name in cells:
        if name not in known and name not in facts:
            raise ProblemError(f"{options.name} has no key {name!r}: expected {', '.join(known)}")
    extras = {name: generic_key.value(cell) for name, cell in cells.items() if name != "dtype"}
    extras |= {name: dtypes.spelled(str(extras[name])) for name in extras if name.endswith(".dtype")}
    wanted = kernel.signature.keyed(extras, cells.get("dtype") or "float16")
    if kernel.arguments_factory.make_inputs is None:
        return wanted
    return kernel.arguments_factory.asked(wanted, any_dtype=not cells.get("dtype"))
