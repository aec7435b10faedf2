"""Fields and options that Meerkat has under other names: whoever sends them is told the name here."""

import pytest

from tests.support.fake_service import FakeService
from tests.transport.cli.process import Cli
from tests.transport.rest.clients import problem, rest
from tests.transport.stdio.client import near
from warren.transport.rpc.contracts import dialect_of

NATIVE = [
    ("host_mode", "peer.keep_alive"),
    ("keep_alive", "peer.keep_alive"),
    ("override_builtins", "overrides.builtins"),
    ("override_shell", "overrides.shell"),
    ("override_memory", "overrides.memory"),
    ("enable_shell", "overrides.shell"),
    ("comms_name", "peer.name"),
]


async def test_jsonrpc_names_the_field() -> None:
    """Creating a session and starting a turn refuse them by name, with the name that works."""
    async with near(FakeService()) as client:
        for sent, here in NATIVE:
            error = await client.error("session/create", prompt="x", **{sent: True})
            assert error["data"]["details"]["path"] == f"$.{sent}"
            assert error["message"] == f"$.{sent}: is not a known field: it is `{here}` here"
        error = await client.error("turn/start", session_id="s1", prompt="x", host_mode=True)
        assert "`peer.keep_alive of session/create`" in error["message"]
        assert "here" not in (await client.error("session/create", prompt="x", nonsense=1))["message"]


async def test_http_names_the_field() -> None:
    """The same on REST."""
    async with rest(FakeService()) as client:
        for sent, here in NATIVE:
            response = await client.post("/sessions", json={"prompt": "x", sent: True})
            assert problem(response) == (422, "INVALID_PARAMS", f"$.{sent}")
            assert f"`{here}`" in response.text


@pytest.mark.parametrize("version", ["0.4", "0.9"])
async def test_the_contract_names_its_own_field(version: str) -> None:
    """Meerkat's protocol has switches of its own; `host_mode` and `keep_alive` are its words and are taken."""
    async with near(FakeService(), dialect=dialect_of(version)) as client:
        for kind in ("builtins", "shell", "memory"):
            error = await client.error("session/create", prompt="x", **{f"override_{kind}": True})
            assert f"`enable_{kind}`" in error["message"]
        error = await client.error("turn/start", session_id="s1", prompt="x", override_shell=True)
        assert "`enable_shell of session/create`" in error["message"]
        for field in ("host_mode", "keep_alive"):
            assert (await client.call("session/create", prompt="x", **{field: True}))["text"] == "x"


OPTIONS = [
    (["run", "--tools", "full", "x"], "--tools", "--builtins, --shell"),
    (["chat", "--tools=full"], "--tools", "--root DIR"),
    (["run", "--override-builtins", "enable", "x"], "--override-builtins", "--enable builtins"),
    (["serve", "--override-shell"], "--override-shell", "--enable shell"),
    (["rpc", "--override-memory"], "--override-memory", "--enable memory"),
    (["run", "--host-mode", "x"], "--host-mode", "peer.keep_alive"),
    (["resume", "last", "--keep-alive", "x"], "--keep-alive", "peer.keep_alive"),
]


@pytest.mark.parametrize(("args", "option", "here"), OPTIONS)
def test_the_command_line_names_the_option(cli: Cli, args: list[str], option: str, here: str) -> None:
    """Bad usage that says what to write instead."""
    ended = cli.run(*args)
    assert (ended.code, ended.out) == (2, "")
    assert f"No such option '{option}'" in ended.err
    assert here in ended.err
