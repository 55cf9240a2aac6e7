"""The command line. Each command is a module that is loaded when it is used."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import importlib
import io
import itertools
import keyword
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import click
from click.shell_completion import CompletionItem

from tuner.cli import streams
from tuner.errors import TunerError, UsageError, one_line

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a full disk or a failing device raises; of a stream no file is named."""
_UNREAD = 128 + signal.SIGPIPE
"""The exit code where nobody reads stdout any more, as a shell tells it. click's own, 1, is that of a failed check."""
COMMANDS = {
    "run": "Tune problems on this machine's GPUs and keep every measurement.",
    "capture": "Run a program and record the matrix products that it calls.",
    "exec": "Run a program and serve tuned configs to its libraries' kernels.",
    "model": "Write the GEMMs and norms of a Hugging Face model as a suite.",
    "moe": "Tune the fused experts of vLLM or SGLang, and write their file.",
    "show": "List winners, trials, runs, devices or problems.",
    "lookup": "Say which config a problem would get, and why.",
    "report": "Write what a database holds as one HTML page.",
    "bench": "Time the configs that lookups return, beside torch and other tuners.",
    "inspect": "Compile a kernel's config; show registers, memory, occupancy.",
    "export": "Write the current winners in files that ship.",
    "warm": "Compile what tables and databases launch into Triton's cache.",
    "import": "Copy tables into a folder, or read other tools' files.",
    "diff": "Compare two tables or databases.",
    "retime": "Time shipped rows again under the installed versions.",
    "verify": "Say what is wrong with tables, or with a database's winners.",
    "merge": "Bring several databases' measurements into one.",
    "db": "Upgrade, check or back up the database.",
    "doctor": "Say what is installed and what is wrong with it.",
}
"""Each command's line in `tuner --help`, which is also the first line of its own help. The module `tuner.cli.<command>`
holds the click command of that name, with a trailing `_` where Python has the name."""

DROPPED_AGAIN_S = 0.05
"""After how long an interrupt that Python dropped is raised again: what dropped it has ended by then."""


class _Commands(click.Group):
    """Loads a command's module when it is used, so that `tuner --help` imports neither torch nor sqlalchemy."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) or hasattr(builtins, cmd_name) else cmd_name
        command = getattr(importlib.import_module(f"tuner.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as e:
            streams.abandon(sys.stdout)
            raise click.exceptions.Exit(_UNREAD) from e
        except SystemExit as e:  # of a kernel's code: no command raises it, and it would end this one without a word
            raise TunerError(
                f"the code of a kernel called sys.exit({e}), which would end this command without a word: "
                f"take the call out; `tuner --debug {ctx.invoked_subcommand} ...` shows where it is"
            ) from e

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click would load every command for its line of help, which takes half a second.
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="triton-tuner", prog_name="tuner")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Tune Triton kernels once per GPU model; ship the winners; never autotune at run time."""
    if ctx.invoked_subcommand not in ("capture", "exec"):
        os.environ.pop("TUNER_ADOPT", None)  # what measures and compiles is served nothing, nor are its children
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage, 130 interrupted, 141 no longer read."""
    arguments = sys.argv[1:] if argv is None else argv
    _print_any_text()
    with streams.guarded():
        _main(arguments)


def _main(arguments: list[str]) -> None:
    result: Any = 1
    try:
        with _interruptible():
            result = cli.main(args=arguments, prog_name="tuner", standalone_mode=False)
        if sys.stdout is not None:  # None where a shell closed it
            sys.stdout.flush()
    except BrokenPipeError:
        streams.abandon(sys.stdout)  # its reader has seen enough, as `head` has
    except click.UsageError as e:
        click.echo(_line(e, arguments), err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (TunerError, OSError) as e:
        message = str(e)
        if isinstance(e, OSError):
            streams.abandon(sys.stdout)
            if e.errno in _FULL and e.filename is None:
                message = f"cannot write what is printed: {e.strerror}: send it elsewhere"
        if "--debug" in itertools.takewhile(lambda each: each.startswith("-"), arguments):  # a program has its own
            traceback.print_exc()
        else:
            click.echo(f"tuner: {message}", err=True)
        sys.exit(2 if isinstance(e, UsageError) else 1)
    finally:
        # Otherwise Python collects garbage as it ends, which takes half a second with torch imported.
        gc.freeze()
    sys.exit(result if isinstance(result, int) else 0)


def _print_any_text() -> None:
    """Print what a stream's encoding lacks as escapes: a path may hold any byte, and a locale may be ASCII's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into KeyboardInterrupt even where an interrupted import raises something else.

    Torch's C code takes it for a missing numpy, after which the next import of numpy is an ImportError, or aborts:
    while that is imported, the process ends at once. Python itself drops it where it comes in the midst of a destructor
    or of a weak reference's callback, as every import has one: it is raised again then.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main_thread = threading.main_thread()
    if threading.current_thread() is not main_thread:
        usual.clear()
    # A handler of the caller's stays, and so does a signal that is ignored.
    ours = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    pressed = 0

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = number
        if _is_importing(frame, ("torch", "triton")):
            streams.leave()
        raise KeyboardInterrupt

    def dropped(error: sys.UnraisableHookArgs) -> None:
        if pressed and issubclass(error.exc_type, KeyboardInterrupt):
            again = threading.Timer(DROPPED_AGAIN_S, signal.pthread_kill, [main_thread.ident, pressed])
            again.daemon = True
            again.start()
        else:
            before(error)

    before, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        with streams.handling(dict.fromkeys(ours, press)):
            yield
    except Exception as e:
        if pressed:
            raise KeyboardInterrupt from e
        raise
    finally:
        sys.unraisablehook = before


def _is_importing(frame: FrameType | None, packages: Iterable[str]) -> bool:
    """Whether a module of one of these packages is being imported."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and name.partition(".")[0] in packages:
            return True
        frame = frame.f_back
    return False


def _line(error: click.UsageError, arguments: list[str]) -> str:
    """Return an error in one line; for a group without a command, return its help."""
    message = error.format_message()
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.1 prints the help itself
        return message
    message = one_line(message)
    # Errors that click's parser raises itself, for instance for a missing value, name no command.
    command = error.ctx.command_path if error.ctx else " ".join(("tuner", *arguments[:1]))
    return f"tuner: {message.rstrip('.')}: `{command} --help` says what can be typed"
