"""`warren serve` on Unix sockets, and under a service manager that binds its sockets and hears of its state."""

import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.transport.cli.process import Cli, Running
from warren.client import connect

ACTIVATED: Final = """
import os, socket, sys
sockets = [socket.socket(fileno=int(each)) for each in os.environ.pop("PASSED").split()]
for number, each in enumerate(sockets):
    os.dup2(each.fileno(), 3 + number)
os.environ |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "warren", *sys.argv[1:]])
"""
"""Starts the command as systemd does: the sockets from file descriptor 3 on."""
SERVE: Final = ("serve", "--model", "echo", "--drain", "4s")


def served_at(cli: Cli, *args: str) -> Running:
    """Start a server at the socket `w.sock`."""
    running = cli.start(*SERVE, "--host", "unix:w.sock", *args)
    assert running.read_until("\n") == "listening on unix:w.sock\n"
    return running


def asked(path: Path, url: str = "/health") -> httpx.Response:
    """Return the answer to a request over a Unix socket."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
        return http.get(f"http://localhost{url}")


@pytest.mark.parametrize("args", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_unix_socket_is_served_and_removed(cli: Cli, args: tuple[str, ...]) -> None:
    """Its owner and group may connect, commands take its address, and it is gone after the end."""
    path = cli.folder / "w.sock"
    running = served_at(cli, *args)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert asked(path).json()["status"] == "ok"
    found = cli.run("run", "hello", "--server", "unix:w.sock", "--output", "json")
    assert found.data["text"] == "hello", found.err
    assert cli.run("health", "unix:w.sock").code == 0
    assert cli.run("health", "--host", "unix:w.sock").code == 0
    second = cli.run(*SERVE, "--host", "unix:w.sock")
    assert (second.code, second.out) == (1, "")
    assert "cannot listen on unix:w.sock: Address already in use" in second.err
    assert asked(path).json()["status"] == "ok"
    running.signal(signal.SIGTERM)
    assert running.end().code == 0
    assert not path.exists()
    gone = cli.run("health", "unix:w.sock")
    assert (gone.code, gone.err) == (1, "unix:w.sock: cannot be reached: No such file or directory\n")


async def test_a_client_of_a_unix_socket(cli: Cli) -> None:
    """`connect` takes its address; one that is not there is named in the error."""
    served_at(cli)
    async with connect(f"unix:{cli.folder / 'w.sock'}") as service:
        assert (await service.create_session("hello")).text == "hello"


def test_the_socket_of_a_killed_server_gives_way(cli: Cli) -> None:
    """Nobody listens there; a file of another kind stays, and another server's socket is not removed at the end."""
    path = cli.folder / "w.sock"
    first = served_at(cli)
    first.process.kill()
    first.end()
    assert path.is_socket()
    second = served_at(cli)
    path.unlink()
    third = served_at(cli, "--ephemeral")
    second.signal(signal.SIGTERM)
    assert second.end().code == 0
    assert asked(path).json()["status"] == "ok"
    third.signal(signal.SIGTERM)
    third.end()
    path.write_text("mine")
    refused = cli.run(*SERVE, "--host", "unix:w.sock")
    assert (refused.code, path.read_text()) == (1, "mine")
    for bad in ("unix:", "unix:" + "x" * 200):
        assert "server: 'unix:" in cli.run("sessions", "list", "--server", bad).err
        refused = cli.run(*SERVE, "--host", bad)
        assert "host: must have a path of 1 to 100 bytes" in refused.err


@contextmanager
def heard(address: str) -> Iterator[socket.socket]:
    """Bind the socket of a manager that hears of the states of servers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(30)
        yield sock


@pytest.mark.parametrize(("workers", "abstract"), [((), False), (("--workers", "2"), True)], ids=["alone", "workers"])
def test_a_service_manager_hears_of_the_state(cli: Cli, workers: tuple[str, ...], *, abstract: bool) -> None:
    """Once when the server accepts clients, and once when its end begins; its children do not know the manager."""
    name = str(cli.folder / "notify")
    with heard(f"\0{name}" if abstract else name) as manager:
        running = cli.start(*SERVE, "--port", "0", *workers, env={"NOTIFY_SOCKET": f"@{name}" if abstract else name})
        assert manager.recv(100) == b"READY=1"
        url = running.read_until("\n").removeprefix("listening on ").strip()
        assert httpx.get(f"{url}/readyz").status_code == 200
        running.signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert running.end().code == 0
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_a_manager_that_is_gone_is_no_error(cli: Cli) -> None:
    """The server serves all the same."""
    running = cli.start(*SERVE, "--port", "0", env={"NOTIFY_SOCKET": "/nowhere/at/all"})
    assert running.read_until("\n").startswith("listening on http://127.0.0.1:")
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_inherited_sockets_are_served(cli: Cli, workers: tuple[str, ...]) -> None:
    """Clients that came before the server are answered; the sockets stay, as they are the manager's."""
    path = cli.folder / "given.sock"
    with socket.create_server(("127.0.0.1", 0)) as given, socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with socket.create_connection(given.getsockname()) as early:
            early.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            running = activated(cli, given, other, args=workers)
            assert running.read_until("\n") == f"listening on http://127.0.0.1:{given.getsockname()[1]}\n"
            early.settimeout(30)
            assert early.recv(100).startswith(b"HTTP/1.1 200")
        assert asked(path).json()["status"] == "ok"
        running.signal(signal.SIGTERM)
        assert running.end().code == 0
        assert path.is_socket()
        with socket.create_connection(given.getsockname()):
            pass


def activated(cli: Cli, *sockets: socket.socket, args: tuple[str, ...] = ()) -> Running:
    """Start a server with sockets of its manager."""
    for each in sockets:
        each.set_inheritable(True)
    passed = " ".join(str(each.fileno()) for each in sockets)
    return cli.start(*SERVE, *args, python=("-c", ACTIVATED), env={"PASSED": passed}, close_fds=False)


def test_inherited_sockets_that_cannot_be_served(cli: Cli) -> None:
    """Others reach an address, and there is no token; or the socket does not listen. Those of others are left alone."""
    with socket.create_server(("0.0.0.0", 0)) as everywhere:  # noqa: S104 - it is refused
        refused = activated(cli, everywhere).end()
        assert (refused.code, "token: is required to bind 0.0.0.0" in refused.err) == (2, True), refused.err
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        refused = activated(cli, deaf).end()
        assert "LISTEN_FDS: file descriptor 3 is no stream socket that listens" in refused.err
        assert "Traceback" not in refused.err
    running = cli.start(*SERVE, "--port", "0", env={"LISTEN_FDS": "1", "LISTEN_PID": "1"})
    assert running.read_until("\n").startswith("listening on http://127.0.0.1:")
