"""The list of a session's tools: which names it may have, what its model sees then, and what a new session is told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.memories import memory_in
from tests.support.models import Emit, reply
from tests.support.runtime import open_runtime
from tests.transport.mcp.clients import connected
from tests.transport.rest.clients import rest
from tests.transport.stdio.client import near
from warren.actors.resources.memory import SEARCH
from warren.actors.session.comms import COMMS_TOOLS
from warren.base.errors import InvalidParamsError
from warren.base.principals import Principal
from warren.calls.facade import SessionService
from warren.conversation.categories import Switches
from warren.conversation.peers import Peer
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_host

BOB = Peer("bob", ("ann",))
CANNOT = "peer: the model cannot answer the session's peers: {} send_message and send_response"
LEFT_OUT = CANNOT.format("the list of tools leaves out")
OFF = CANNOT.format("the kind comms is off, and with it")


@attrs.define
class Looking:
    """A model that says nothing of interest, and keeps the names of the tools that it sees."""

    seen: tuple[str, ...] = ()

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.seen = tuple(spec.name for spec in request.tools)
        return reply("ok")


@tool
def dig(where: str) -> str:
    """Dig a hole."""
    return where


@tool(category="shell")
def blast() -> str:
    """Make a large hole."""
    return "bang"


async def refusal(service: SessionService, *names: str, **options: object) -> str:
    """Return the refusal of a session that names tools."""
    with pytest.raises(InvalidParamsError) as caught:
        await service.create_session("x", tools=names, **options)  # type: ignore[arg-type]
    assert caught.value.path == f"$.tools[{len(names) - 1}]"
    return caught.value.message


async def test_every_tool_of_a_session_can_be_named(tmp_path: Path) -> None:
    """All that a session without a list is offered can stand in a list, each alone, and its model sees just that."""
    config = Config(
        model="test",
        provider="test",
        switches=Switches(builtins="enable", shell="enable"),
        tools=ToolsConfig(root=tmp_path, shell=True, fetch=True),
    )
    model = Looking()
    async with open_host(config, tools=[dig], providers={"test": model}) as host:
        await host.service.create_session("x", peer=attrs.evolve(BOB, name="all"))
        there = model.seen
        assert {"dig", "shell", "fetch", "read_file", "datetime_now", *COMMS_TOOLS} <= {*there}
        for name in there:
            await host.service.create_session("x", tools=[name], peer=Peer(name))
            assert model.seen == (name,)
        await host.service.create_session("x", tools=[])
        assert model.seen == ()


async def test_tools_of_the_call_of_the_memory_and_of_the_provider_can_be_named() -> None:
    """The tools of a client, the search of the memory, and hosted tools that the session has are known names."""
    model = Looking()
    async with open_runtime(model, memory=memory_in(None)) as service:
        names = [SEARCH, "dig", "web_search"]
        asked = await service.create_session("x", tools=names, extra_tools=[dig], hosted_tools={"web_search": {}})
        assert (model.seen, asked.warnings) == ((SEARCH, "dig"), ())
        assert "there is no tool 'web_search'" in await refusal(service, "web_search")


async def test_a_name_that_no_tool_has() -> None:
    """The refusal names the place in the list, and what the caller may have meant or what is missing for it."""
    async with open_runtime(Looking(), tools=[dig, attrs.evolve(blast, tenant="acme")]) as service:
        assert await refusal(service, "dig", "digg") == "$.tools[1]: there is no tool 'digg'; did you mean 'dig'?"
        assert await refusal(service, "sing") == "$.tools[0]: there is no tool 'sing'; there are: dig"
        assert "there are: dig" in await refusal(service, "blast")  # it is another tenant's
        assert "this runtime has no memory" in await refusal(service, SEARCH)
        assert "a session with a name among peers" in await refusal(service, "send_message")
        near_it = "'send_mesage'; did you mean 'send_message'?"
        assert near_it in await refusal(service, "send_mesage", peer=BOB)
        acme = service.as_(Principal("acme", "ann"))
        assert (await acme.create_session("x", tools=["blast"])).session_id
    async with open_runtime(
        Looking(), tools=[attrs.evolve(dig, spec=attrs.evolve(dig.spec, name=f"dig{at:02}")) for at in range(30)]
    ) as service:
        assert (await refusal(service, "sing")).endswith("dig18, dig19 and 10 more")


async def test_a_session_whose_model_cannot_answer_its_peers_is_told_so(tmp_path: Path) -> None:
    """The reply says so, also the reply to the same request under its key; not whoever can answer, or gets none."""
    async with open_runtime(Looking(), store=tmp_path, tools=[dig]) as service:
        for key in ("a key", "a key", None):
            peer = BOB if key else Peer("ben", ("ann",))
            made = await service.create_session("x", tools=["dig", "list_peers"], peer=peer, idempotency_key=key)
            assert made.warnings == (LEFT_OUT,)
        off = Switches(comms="disable")
        made = await service.create_session(None, peer=Peer("eve", ("ann",)), overrides=off)
        assert made.warnings == (OFF,)
        able: list[tuple[Sequence[str] | None, Sequence[str]]] = [
            (["send_message"], ["ann"]),
            (["send_response", "dig"], ["ann"]),
            (None, ["ann"]),
            (["dig"], []),
        ]
        for number, (names, trusts) in enumerate(able):
            made = await service.create_session(None, tools=names, peer=Peer(f"p{number}", tuple(trusts)))
            assert made.warnings == ()


async def test_a_tool_of_a_kind_that_is_off_is_told_of() -> None:
    """A name in the list switches nothing on: the reply says which switch does, and with it the model sees the tool."""
    model = Looking()
    async with open_runtime(model, tools=[dig, blast]) as service:
        made = await service.create_session("x", tools=["dig", "blast"])
        assert [*model.seen] == ["dig"]
        assert made.warnings == ("tools[1]: blast is not offered while its kind is off, see overrides.shell",)
        made = await service.create_session("x", tools=["dig", "blast"], overrides=Switches(shell="enable"))
        assert [*model.seen] == ["dig", "blast"]
        assert made.warnings == ()


async def test_every_surface_shows_the_warnings() -> None:
    """JSON-RPC, REST and MCP have them in the reply, and a reply without any has no such member."""
    sent: dict[str, Any] = {"prompt": None, "tools": ["dig"], "peer": {"name": "bob", "trusts": ["ann"]}}
    async with open_runtime(Looking(), tools=[dig]) as service:
        async with near(service) as client:
            assert (await client.call("session/create", **sent))["warnings"] == [LEFT_OUT]
            assert "warnings" not in await client.call("session/create", prompt=None)
        sent["peer"] = {"name": "ben", "trusts": ["ann"]}
        async with rest(service) as web:
            assert (await web.post("/sessions", json=sent)).json()["warnings"] == [LEFT_OUT]
        sent["peer"] = {"name": "eve", "trusts": ["ann"]}
        async with connected(service) as program:
            assert (await program.ask("warren_run", **sent))["warnings"] == [LEFT_OUT]
