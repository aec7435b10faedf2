"""`warren health`, the probe for images without curl."""

import socket

import pytest

from tests.transport.cli.process import WITHOUT, Cli
from warren.transport.cli.health import url_of


def test_it_asks_the_server_of_the_settings(cli: Cli) -> None:
    """One line, and exit code 0, for the address of the environment or one that is named, of the WebSocket or not."""
    server = cli.start("serve", "--ephemeral", "--port", "0", "-m", "echo")
    port = server.read_until("\n").strip().rpartition(":")[2]
    asked = cli.run("health", env={"WARREN_PORT": port})
    assert (asked.code, asked.out, asked.err) == (0, f"http://127.0.0.1:{port}: ready\n", "")
    asked = cli.run("health", f"ws://127.0.0.1:{port}", "--live")
    assert (asked.code, asked.out) == (0, f"ws://127.0.0.1:{port}: alive\n")
    for websocket in (f"ws://127.0.0.1:{port}/ws", f"http://127.0.0.1:{port}/ws/"):
        assert cli.run("health", websocket).out == f"{websocket}: ready\n"
    below = cli.run("health", f"http://127.0.0.1:{port}/elsewhere")
    assert (below.code, below.out) == (1, "")
    assert "404" in below.err


@pytest.mark.parametrize("module", ["starlette", "trio", "httpx"])
def test_it_needs_no_other_extra(cli: Cli, module: str) -> None:
    """The command is for images with nothing else in them."""
    asked = cli.run("health", "http://127.0.0.1:1", python=("-c", WITHOUT, module))
    assert (asked.code, asked.err.count("\n")) == (1, 1), asked
    assert "cannot be reached" in asked.err


def test_a_server_that_is_not_there(cli: Cli) -> None:
    """Exit code 1 and one line, whether nobody listens, nobody answers, or the name is unknown."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}", "http://127.0.0.1:1", "http://nowhere.invalid:80"):
            asked = cli.run("health", url, "--timeout", "0.3")
            assert (asked.code, asked.out, asked.err.count("\n")) == (1, "", 1), asked
            assert url in asked.err


def test_bad_addresses_are_named(cli: Cli) -> None:
    """Neither a file nor a host without a scheme is asked for anything."""
    for url in ("file:///etc/passwd", "127.0.0.1:8420", "http://:80", "http://x:99999"):
        asked = cli.run("health", url)
        assert asked.code == 2
        assert url in asked.err
    assert "port" in cli.run("health", "--port", "0").err


def test_the_server_of_this_machine() -> None:
    """A server that listens to all addresses is asked at this machine's own."""
    assert url_of(None, None) == "http://127.0.0.1:8420"
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"  # noqa: S104 - nothing is bound
    assert url_of("::", 80) == "http://[::1]:80"
    assert url_of("10.0.0.5", None) == "http://10.0.0.5:8420"
