"""The nodes of a Ray cluster. Ray starts a process on each and carries calls to it; nothing else is asked of Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import SweepError, TunerError, UsageError, first_line
from tuner.fleet.node import Node

_CONNECT_S = 5.0
_HTTP2_SETTINGS = b"\x04"
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _HTTP2_SETTINGS + b"\0\0\0\0\0"
"""How a client of gRPC begins; a server answers with a frame of settings, too (RFC 9113, 3.4)."""
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = Path(sysconfig.get_paths()["stdlib"]).resolve()


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the cluster, with the GPUs that Ray counts there."""

    host: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a call to a node: what it returned, or why it failed; `is_lost` where the node is gone."""

    value: Any = None
    error: str = ""
    is_lost: bool = False


class Cluster(contextlib.AbstractContextManager["Cluster"]):
    """A connection to a Ray cluster; a context manager that ends every process that it started there."""

    def __init__(self, address: str, *, interpreted: bool, references: Sequence[str] = ()) -> None:
        """Connect.

        Args:
            address: the cluster's, as `head_of` returns it.
            interpreted: whether the nodes work on Triton's interpreter.
            references: of users' kernels, whose modules travel to the nodes.

        Raises:
            SweepError: Ray is not installed, nobody answers, or the cluster has another Ray or Python.
        """
        self._ray = _import_ray()
        environment: dict[str, Any] = {"env_vars": {"TRITON_INTERPRET": "1"}} if interpreted else {}
        if modules := modules_of(references):
            environment["py_modules"] = modules
        self._interpreted = interpreted
        self._actors: dict[str, Any] = {}
        self._calls: dict[Any, str] = {}
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            # Ray tells the same again on the terminal otherwise, and copies there what every node prints.
            self._ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.CRITICAL)
        except Exception as e:
            raise SweepError(f"Ray at {address}: {_said(e)}: {_advice(e, self._ray.__version__)}") from e
        except SystemExit:  # Ray's own handler of SIGTERM
            raise KeyboardInterrupt from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)  # it means the same as Ctrl-C, and Ray replaced it

    def __exit__(self, *_: object) -> None:
        for node in list(self._actors):
            self.end(node)
        self._ray.shutdown()

    def machines(self) -> dict[str, Machine]:
        """The machines that are there now, by Ray's id."""
        alive = (each for each in self._ray.nodes() if each["Alive"])
        return {
            each["NodeID"]: Machine(each["NodeManagerHostname"], int(each["Resources"].get("GPU", 0))) for each in alive
        }

    def start(self, node: str, machine_id: str, machine: Machine, job: tuple[Sequence[str], Sequence[str]]) -> None:
        """Start a node on a machine, with all GPUs of it, and ask for its `hello`.

        Args:
            node: its name from here on.
            machine_id, machine: where.
            job: the ops and the references that `tuner.fleet.node.Node` takes.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus: list[int | None] = [None] if self._interpreted else list(range(machine.gpus))
        self._actors[node] = (
            self._ray.remote(Node)
            .options(
                num_cpus=0,
                num_gpus=machine.gpus,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine_id, soft=False),
            )
            .remote(gpus, *job)
        )
        self.call(node, "hello")

    def call(self, node: str, method: str, *arguments: Any) -> None:
        """Call a method of a node; `replies` has what comes of it."""
        self._calls[getattr(self._actors[node], method).remote(*arguments)] = node

    def replies(self, timeout_s: float) -> dict[str, Reply]:
        """What nodes replied, by node; waits for the first one, at most so long."""
        if not self._calls:
            return {}
        ready, _ = self._ray.wait(list(self._calls), timeout=timeout_s)
        ready, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0) if ready else ([], [])
        return {self._calls.pop(call): self._reply(call) for call in ready}

    def end(self, node: str) -> None:
        """End a node's process, whatever it is doing."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actors.pop(node))
        self._calls = {call: other for call, other in self._calls.items() if other != node}

    def _reply(self, call: Any) -> Reply:
        try:
            return Reply(self._ray.get(call))
        except self._ray.exceptions.RayTaskError as e:
            cause = e.cause
            return Reply(error=str(cause) if isinstance(cause, TunerError) else _said(cause))
        except self._ray.exceptions.RayError as e:
            return Reply(error=_said(e), is_lost=True)


def modules_of(references: Sequence[str]) -> list[str]:
    """The files and packages that travel to the nodes so that these references can be imported there.

    They are the kernels' modules, and what was imported from the same folder. What an installed package holds does not
    travel: the nodes must have it, as they have triton-tuner.
    """
    imported = {name: path for name, module in list(sys.modules.items()) if (path := _place(name, module)) is not None}
    tops = {reference.rpartition(":")[0].partition(".")[0] for reference in references}
    folders = {imported[top].parent for top in tops & imported.keys()}
    ours = {folder for folder in folders if _INSTALLED.isdisjoint(folder.parts) and folder != _STDLIB}
    return sorted({str(path) for path in imported.values() if path.parent in ours})


def _place(name: str, module: ModuleType) -> Path | None:
    """The file of a module of the top level, or its folder if it is a package."""
    file = getattr(module, "__file__", None)
    if file is None or "." in name or name in ("__main__", "__mp_main__", "tuner"):
        return None
    path = Path(file).resolve()
    return path.parent if path.name == "__init__.py" else path


def _import_ray() -> Any:
    # Ray announces a change of its own otherwise, which nobody who types a command can act on.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as e:
        raise SweepError(f"--ray needs Ray ({e}): pip install 'triton-tuner[ray]'") from None
    return ray


def head_of(address: str) -> str:
    """Return HOST:PORT of a cluster's head, which may listen there; what Ray means by "auto" on this machine.

    Raises:
        UsageError: it is no address.
        SweepError: nobody listens there, something else does, or this machine is in no cluster.
    """
    found = _local_head() if address == "auto" else address
    try:
        check_listening(found)
    except TunerError as e:
        if address == found:
            raise
        raise SweepError(f"--ray auto is {found} here, by $RAY_ADDRESS or the last `ray start`: {e}") from None
    return found


def _local_head() -> str:
    _import_ray()
    from ray._private.services import canonicalize_bootstrap_address  # Ray has no public name for it

    try:
        return str(canonicalize_bootstrap_address("auto"))
    except (ConnectionError, ValueError) as e:
        advice = "type `ray start --head` on this machine, or give --ray HOST:PORT of a cluster"
        why = f" ($RAY_ADDRESS: {first_line(e)})" if isinstance(e, ValueError) else ""
        raise SweepError(f"this machine is in no Ray cluster{why}: {advice}") from None


def check_listening(address: str) -> None:
    """Ask whether a head may listen at HOST:PORT, because Ray asks for a quarter of an hour.

    Raises:
        UsageError: it is no address.
        SweepError: nobody listens there, or something else does.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise _no_address(address)
    advice = "type `ray start --head --port=6379` there, or give --ray the address that it printed"
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            connection.sendall(_HTTP2_HELLO)
            answer = connection.recv(9)
    except (TimeoutError, ConnectionResetError):
        answer = b""
    except UnicodeError:  # a name that no host can have, such as one with two dots in a row
        raise _no_address(address) from None
    except OSError as e:
        raise SweepError(f"nobody listens at {address} ({e.strerror or e}): {advice}") from None
    if answer[3:4] != _HTTP2_SETTINGS and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise SweepError(f"what listens at {address} is no Ray cluster's head: {advice}")


def _no_address(given: str) -> UsageError:
    found = f"--ray {given}" if given else "--ray is empty"
    return UsageError(f"{found}: expected HOST:PORT of the cluster's head, such as 10.0.0.1:6379, or auto")


def _said(error: BaseException | None) -> str:
    """What Ray says, in one line without colours."""
    return first_line(error) if error is not None else "it ended"


def _advice(error: Exception, version: str) -> str:
    if "ersion mismatch" in str(error):
        return f"install in one of both what the other has, pip install ray=={version} there"
    if isinstance(error, ConnectionError):
        return "type `ray start --head` on this machine, or give --ray HOST:PORT of a cluster"
    return "type `ray status` on a machine of the cluster"
