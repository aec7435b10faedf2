"""Aliases of options and tools: each surface takes them for the options that they stand for."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.fake_service import FakeService
from tests.support.memories import memory_in
from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime, replay, transcript
from tests.transport.mcp.clients import connected
from tests.transport.rest.clients import problem, rest
from tests.transport.stdio.client import near
from warren.base.errors import InvalidParamsError
from warren.calls.facade import SessionService
from warren.conversation.categories import Switches
from warren.conversation.events import RunStarted
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.conversation.peers import Peer
from warren.models.model import ModelReply, ModelRequest
from warren.transport.rpc.contracts import dialect_of

SHELL = Switches(shell="enable")
CREATED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"host_mode": True}, {"keep_alive": True}),
    ({"comms_name": "bob"}, {"peer": Peer("bob")}),
    ({"comms_name": "bob", "peer": {"trusts": ["ann"]}}, {"peer": Peer("bob", ("ann",))}),
    ({"override_shell": "enable"}, {"overrides": SHELL}),
    ({"override_shell": True, "overrides": {"builtins": "disable"}}, {"overrides": Switches("disable", "enable")}),
    ({"override_builtins": False, "enable_memory": None}, {"overrides": Switches("disable")}),
]
STARTED = [pair for pair in CREATED if "comms_name" not in pair[0]]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"host_mode": "yes"}, "$.host_mode", "must be true or false"),
    ({"host_mode": True, "keep_alive": True}, "$.host_mode", "is an alias of `keep_alive`, which is given too"),
    ({"override_shell": "on"}, "$.override_shell", "must be one of inherit, enable, disable"),
    (
        {"override_shell": "enable", "overrides": {"shell": "disable"}},
        "$.override_shell",
        "is an alias of `overrides.shell`, which is given too",
    ),
    ({"host_mode": True, "nonsense": 1}, "$.nonsense", "is not a known field"),
]


def options_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call that a test gives."""
    return {name: value for name, value in call.items() if name in {"keep_alive", "peer", "overrides"}}


async def test_jsonrpc_takes_them() -> None:
    """A session and a turn have the options that aliases stand for."""
    service = FakeService()
    async with near(service) as client:
        for sent, meant in CREATED:
            made = await client.call("session/create", prompt="x", **sent)
            assert options_of(service.called("create_session")[-1]) == meant
        for sent, meant in STARTED:
            await client.call("turn/start", session_id=made["session_id"], prompt="x", **sent)
            assert options_of(service.called("start_turn")[-1]) == meant
        for bad, path, words in REFUSED:
            error = await client.error("session/create", prompt="x", **bad)
            assert (error["data"]["details"]["path"], error["message"]) == (path, f"{path}: {words}")


async def test_rest_takes_them() -> None:
    """The same over HTTP."""
    service = FakeService()
    async with rest(service) as client:
        for sent, meant in CREATED:
            made = await client.post("/sessions", json={"prompt": "x", **sent})
            assert options_of(service.called("create_session")[-1]) == meant
        for sent, meant in STARTED:
            await client.post(f"/sessions/{made.json()['session_id']}/messages", json={"prompt": "x", **sent})
            assert options_of(service.called("start_turn")[-1]) == meant
        for bad, path, words in REFUSED:
            response = await client.post("/sessions", json={"prompt": "x", **bad})
            assert problem(response) == (422, "INVALID_PARAMS", path)
            assert words in response.json()["message"]


async def test_mcp_takes_them() -> None:
    """The same for the tools of MCP, which have an alias for the search of the memory, too."""
    service = FakeService()
    async with connected(service) as program:
        for sent, meant in CREATED:
            await program.ask("warren_run", prompt="x", **sent)
            assert options_of(service.called("create_session")[-1]) == meant
        for name in ("search_project_history", "warren_memory_search"):
            await program.fail(name, query="burrow", scope="project")
        first, second = service.called("search_memory")
        assert first == second


async def test_keywords_take_them() -> None:
    """The same for a program that calls the service."""
    async with open_runtime() as service:
        made: Any = service.create_session
        with pytest.raises(InvalidParamsError, match=r"\$\.host_mode: is an alias of `keep_alive`, which is given too"):
            await made("x", host_mode=True, keep_alive=True)
        with pytest.raises(InvalidParamsError, match=r"\$\.overrides\.shell: must be one of"):
            await made("x", override_shell="on")
        with pytest.raises(InvalidParamsError, match=r"this runtime has no shell tools"):
            await made("x", override_shell="enable", overrides=Switches(builtins="disable"))
        with pytest.raises(TypeError, match="nonsense"):
            await made("x", nonsense=True)
        assert (await made("x", override_shell=False, comms_name="bob", host_mode=True)).text == "x"


@pytest.mark.parametrize("version", ["0.4", "0.9"])
async def test_meerkats_contract_takes_them(version: str) -> None:
    """Its own fields have the same aliases, in a turn too."""
    service, off = FakeService(), Switches(shell="disable")
    async with near(service, dialect=dialect_of(version)) as client:
        made = await client.call("session/create", prompt="x", override_shell=False, keep_alive=True)
        assert options_of(service.called("create_session")[-1]) == {"keep_alive": True, "overrides": off}
        params = {"session_id": made["session_id"], "prompt": "x"}
        await client.call("turn/start", **params, override_shell=False, host_mode=False)
        assert options_of(service.called("start_turn")[-1]) == {"keep_alive": False, "overrides": off}


class Searching:
    """A model that searches by the alias of the tool, and says whether that failed."""

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        last = request.messages[-1]
        if isinstance(last, ToolResultsMessage):
            return reply(str(last.results[0].is_error))
        return reply("", ToolUseBlock("c1", "search_project_history", {"query": "burrow"}))


async def test_the_search_of_the_memory_has_an_alias(tmp_path: Path) -> None:
    """A session may be given the tool by it, and the model may call it so."""
    async with open_runtime(Searching(), store=tmp_path, memory=memory_in(tmp_path / "memory")) as service:
        session_id = await new_session(service, tools=["search_project_history"])
        assert (await service.start_turn(session_id, "x")).text == "False"


async def told(service: SessionService, session_id: str) -> int:
    """Return how many turns of a session have begun."""
    return sum(isinstance(each.event, RunStarted) for each in await replay(service, session_id))


@pytest.mark.virtual_time
@pytest.mark.parametrize("stored", [False, True])
async def test_host_mode_of_a_turn_holds_from_its_end_on(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001 - a table
    """A turn with it lets messages of peers begin turns, and one without it takes that back; a restart keeps it."""
    place = tmp_path if stored else None
    async with open_runtime(store=place) as service:
        turn: Any = service.start_turn
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        await service.send_message(ann, "bob", "one")
        await trio.sleep(1)
        assert await told(service, bob) == 0
        await turn(bob, "go", host_mode=True)
        await service.send_message(ann, "bob", "two")
        await trio.sleep(1)
        assert await told(service, bob) == 2
    if not stored:
        return
    async with open_runtime(store=place) as service:
        await service.send_message(ann, "bob", "three")
        await trio.sleep(5)
        assert await told(service, bob) == 3
        await service.start_turn(bob, "stop", keep_alive=False)
        await service.send_message(ann, "bob", "four")
        await trio.sleep(5)
        assert await told(service, bob) == 4
        assert "four" not in str(await transcript(service, bob))
