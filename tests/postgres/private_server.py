"""A PostgreSQL server of one's own: a private cluster in a temporary folder, on a Unix socket alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SETTINGS = {"listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "max_connections": "20"}
RULES = "local all guarded scram-sha-256\nlocal all all trust\n"


@dataclass
class Server:
    """A server; its superuser is `tuner`, and the user `guarded` has the password "secret"."""

    folder: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        for _ in range(600):
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGINT) -> None:
        """End every connection, then the server: in order (SIGINT) or as a crash does (SIGQUIT)."""
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server and its children, as a machine that hangs does: the system still takes connections."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children")
        os.kill(postmaster, signal.SIGSTOP)  # first, so that it has no more children than are read next
        processes = [*map(int, children.read_text().split()), postmaster]

        def send(number: int) -> None:
            for process in processes:
                with suppress(ProcessLookupError):  # a connection that ended just now
                    os.kill(process, number)

        send(signal.SIGSTOP)
        try:
            yield
        finally:
            send(signal.SIGCONT)

    def url(self, database: str, user: str = "tuner", **options: str) -> str:
        """What `--db` takes."""
        rest = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@/{database}?host={self.folder}{rest}"

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements, each in a transaction of its own, for CREATE DATABASE allows no other."""
        import psycopg

        where = f"host={self.folder} user=tuner dbname={database}"
        with psycopg.connect(where, autocommit=True, connect_timeout=10) as connection:
            for statement in statements:
                connection.execute(statement)


def programs() -> Path | None:
    """The folder of Debian's newest server, or of the one in PATH; None without."""
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = max(installed, key=lambda path: int(path.parts[-3]), default=None) or shutil.which("initdb")
    return None if found is None or shutil.which("setpriv") is None else Path(found).parent


@contextmanager
def running(binaries: Path) -> Iterator[Server]:
    """A server that ends with the block, and by the kernel's hand should this process be killed."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-pg-"))  # a socket's path has 107 bytes at most: pytest's is too long
    as_user = ["setpriv", "--pdeathsig", "INT"]
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, 65534, 65534)
        as_user += ["--reuid=65534", "--regid=65534", "--clear-groups"]
    found = None
    try:
        folder.chmod(0o755)
        data = folder / "data"
        cluster = ["-D", str(data), "-U", "tuner", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        initdb = [*as_user, str(binaries / "initdb"), *cluster]
        made = subprocess.run(initdb, check=False, capture_output=True, text=True, cwd="/", timeout=120)
        assert made.returncode == 0, made.stderr
        (data / "pg_hba.conf").write_text(RULES)
        options = [f"--{name}={value}" for name, value in {**SETTINGS, "unix_socket_directories": str(folder)}.items()]
        found = Server(folder, [*as_user, str(binaries / "postgres"), "-D", str(data), *options])
        found.start()
        yield found
    finally:
        if found is not None:
            found.end()
        shutil.rmtree(folder, ignore_errors=True)
