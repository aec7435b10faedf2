"""Tool calls that wait for the word of whoever sits in front of the client."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.checks import assert_valid_transcript
from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import open_runtime, transcript
from tests.transport.acp.client import Client, chosen, connect, said
from warren.base.errors import AgentError
from warren.calls.facade import SessionService
from warren.conversation.categories import Gates
from warren.conversation.events import ToolApprovalRequested
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import asking, tool
from warren.settings.config import Config, Limits
from warren.transport.acp.permission import Permissions
from warren.transport.rpc.jsonrpc import Response

pytestmark = pytest.mark.virtual_time
ASK = Config(gates=Gates(mcp="ask"))
DUG: list[str] = []


@tool(category="mcp")
async def dig(where: str) -> str:
    """Dig a hole."""
    DUG.append(where)
    return f"a hole {where}"


@pytest.fixture(autouse=True)
def _nothing_dug() -> None:
    DUG.clear()


def digs(*places: str) -> ModelReply:
    """Return an answer that wants holes, the first as the call `c0`."""
    return reply("", *(ToolUseBlock(f"c{number}", "dig", {"where": place}) for number, place in enumerate(places)))


async def results(service: SessionService, session_id: str) -> list[tuple[str, bool]]:
    """Return what the model was told of its calls, and whether as an error."""
    messages = await transcript(service, session_id)
    assert_valid_transcript(messages)
    found = [message.results for message in messages if isinstance(message, ToolResultsMessage)]
    return [(result.content, result.is_error) for group in found for result in group]


def statuses(client: Client, call: str = "c0") -> list[str]:
    """Return the states that a call was seen in, and where it was asked about."""
    found = []
    for message in client.heard:
        params = message.get("params", {})
        about = params.get("toolCall") or params.get("update") or {}
        if about.get("toolCallId") == call:
            found.append("asked" if "toolCall" in params else about["status"])
    return found


async def test_an_allowed_call_runs() -> None:
    """The client is asked about the call it knows as pending, with four ways to answer; then the call runs."""
    model = says(digs("here"), reply("done"))
    async with open_runtime(model, tools=[dig], config=ASK) as service, connect(service) as client:
        client.says = lambda _: chosen("allow_once")
        session_id = await client.new()
        assert (await client.prompt(session_id, "go")).stop_reason == "end_turn"
        assert DUG == ["here"]
        assert statuses(client) == ["pending", "asked", "in_progress", "completed"]
        (asked,) = client.asked
        assert asked["sessionId"] == session_id
        assert asked["toolCall"] == {
            "toolCallId": "c0",
            "title": "dig",
            "kind": "other",
            "status": "pending",
            "rawInput": {"where": "here"},
        }
        kinds = ["allow_once", "allow_always", "reject_once", "reject_always"]
        assert [option["kind"] for option in asked["options"]] == kinds


REFUSED: list[Mapping[str, Any]] = [
    chosen("reject_once"),
    chosen("reject_always"),
    {"result": {"outcome": {"outcome": "cancelled"}}},
    {"result": None},
    {"result": {"outcome": {"outcome": "selected"}}},
    {"result": {"outcome": "allow_once"}},
    {"result": ["allow_once"]},
    chosen("yolo"),
    chosen(""),
    {"error": {"code": -32601, "message": "there is no such method"}},
    {"error": "no"},
]


@pytest.mark.parametrize("answer", REFUSED, ids=str)
async def test_everything_but_an_allowance_is_a_refusal(answer: Mapping[str, Any]) -> None:
    """The call is not run and seen to have failed, the model hears of it, and the turn goes on."""
    model = says(digs("here"), reply("then not"))
    async with open_runtime(model, tools=[dig], config=ASK) as service, connect(service) as client:
        client.says = lambda _: answer
        session_id = await client.new()
        ended = await client.prompt(session_id, "go")
        assert (ended.stop_reason, ended.text()) == ("end_turn", "then not")
        assert DUG == []
        assert statuses(client) == ["pending", "asked", "failed"]
        ((told, is_error),) = await results(service, session_id)
        assert is_error
        assert told.startswith("not run: it was refused")
        content = {"type": "content", "content": {"type": "text", "text": told}}
        assert ended.only("tool_call_update")[-1]["content"] == [content]


@pytest.mark.parametrize(("option", "dug"), [("allow_always", ["1", "2", "3"]), ("reject_always", [])])
async def test_always_holds_for_the_session(option: str, dug: list[str]) -> None:
    """Further calls of the tool are not asked about, in later turns neither; another session is."""
    model = FunctionModel(digs_thrice)
    async with open_runtime(model, tools=[dig], config=ASK) as service, connect(service) as client:
        client.says = lambda _: chosen(option)
        session_id = await client.new()
        for number in range(3):
            await client.prompt(session_id, str(number + 1))
        assert (DUG, len(client.asked)) == (dug, 1)
        await client.prompt(await client.new(), "4")
        assert len(client.asked) == 2


async def test_always_does_not_hold_for_a_call_that_may_have_run() -> None:
    """Its question says that it may have run, and has two ways to answer; what is said of it holds for no other."""
    asked: list[Mapping[str, Any]] = []

    async def ask(_method: str, params: Mapping[str, Any], sent: Callable[[], None]) -> Response:
        await trio.lowlevel.checkpoint()
        sent()
        asked.append(params)
        return Response(1, chosen("reject_always")["result"], None)

    async with open_runtime(says(reply("done"))) as service:
        permissions = Permissions(service, "none", ask)
        for may_have_run in (True, False, True, False):
            await permissions.approve(ToolApprovalRequested("c0", "dig", {}, "mcp", 1000, None, may_have_run))
    marked = "dig (may have run already: the process ended during it)"
    told = [(each["toolCall"]["title"], len(each["options"])) for each in asked]
    assert told == [(marked, 2), ("dig", 4), (marked, 2)]


@tool(category="mcp")
async def survey(where: str) -> str:
    """Ask two questions of whoever approves the calls."""
    ask = asking.get()
    assert ask is not None
    decisions = [await ask({"message": f"{where}, {what}?"}) for what in ("lawn", "pond")]
    return " ".join("none" if decision is None else str(decision.allow) for decision in decisions)


async def test_always_holds_for_calls_and_not_for_their_questions() -> None:
    """Each question is put, with two ways to answer, and what is said of one holds for nothing else."""
    model = says(reply("", ToolUseBlock("c0", "survey", {"where": "here"})), reply("done"))
    answers = iter(["allow_always", "allow_once", "reject_once"])
    async with open_runtime(model, tools=[survey], config=ASK) as service, connect(service) as client:
        client.says = lambda _: chosen(next(answers))
        session_id = await client.new()
        await client.prompt(session_id, "go")
        assert await results(service, session_id) == [("True False", False)]
        told = [(asked["toolCall"]["toolCallId"], len(asked["options"])) for asked in client.asked]
        assert told == [("c0", 4), ("c0.1", 2), ("c0.2", 2)]
        assert client.asked[2]["toolCall"]["rawInput"] == {"message": "here, pond?"}


async def digs_thrice(request: ModelRequest, _emit: Any) -> ModelReply:
    """Dig where the user says, then be done."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    return reply("done") if isinstance(last, ToolResultsMessage) else digs(str(getattr(last, "content", "")))


async def test_calls_are_asked_about_at_once_and_answered_in_any_order() -> None:
    """Each answer goes to its own call, and one that runs does not wait for the others."""
    model = says(digs("first", "second"), reply("done"))
    async with open_runtime(model, tools=[dig], config=ASK) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        questions = [await client.question(), await client.question()]
        first, second = sorted(questions, key=lambda question: str(question["params"]["toolCall"]["toolCallId"]))
        await client.reply(second, **chosen("allow_once"))
        await wait_all_tasks_blocked()
        assert DUG == ["second"]
        await client.reply(first, **chosen("reject_once"))
        assert (await client.answer_to(prompt)).stop_reason == "end_turn"
        assert [is_error for _, is_error in await results(service, session_id)] == [True, False]


async def test_a_cancel_while_somebody_is_asked() -> None:
    """The prompt is answered as cancelled, a late answer is taken for none, and the next prompt asks anew."""
    model = says(digs("here"), digs("there"), reply("done"))
    async with open_runtime(model, tools=[dig], config=ASK) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        question = await client.question()
        await client.cancel(session_id)
        await client.reply(question, result={"outcome": {"outcome": "cancelled"}})
        assert (await client.answer_to(prompt)).stop_reason == "cancelled"
        await client.reply(question, **chosen("allow_always"))
        assert statuses(client) == ["pending", "asked", "failed"]
        assert_valid_transcript(await transcript(service, session_id))
        client.says = lambda _: chosen("allow_once")
        assert (await client.prompt(session_id, "again")).stop_reason == "end_turn"
        assert (DUG, len(client.asked)) == (["there"], 2)


async def test_nobody_answers_in_time() -> None:
    """The runtime's time limit refuses the call; an answer after that changes nothing."""
    config = Config(gates=Gates(mcp="ask"), limits=Limits(approval_timeout=30))
    model = says(digs("here"), reply("then not"))
    async with open_runtime(model, tools=[dig], config=config) as service, connect(service) as client:
        session_id = await client.new()
        ended = await client.prompt(session_id, "go")
        assert (ended.stop_reason, DUG, len(client.asked)) == ("end_turn", [], 1)
        await client.reply({"id": 0}, **chosen("allow_always"))
        assert (await client.prompt(session_id, "/help")).stop_reason == "end_turn"
        ((told, _),) = await results(service, session_id)
        assert told == "not run: it was not approved in time"


async def test_a_client_that_is_gone_allows_nothing() -> None:
    """Its prompt ends, and the call with it."""
    model = says(digs("here"), reply("done"))
    async with open_runtime(model, tools=[dig], config=ASK) as service:
        async with connect(service) as client:
            session_id = await client.new()
            await client.write(client.request("session/prompt", sessionId=session_id, prompt=said("go")))
            await client.question()
        assert DUG == []
        assert not (await service.read(session_id)).state.is_active
        assert [is_error for _, is_error in await results(service, session_id)] == [True]


async def test_a_mode_asks_more_and_never_less() -> None:
    """In `ask` calls wait that would run by themselves; `default` leaves it to the runtime, which may ask too."""
    model = FunctionModel(digs_thrice)
    async with open_runtime(model, tools=[dig]) as service, connect(service) as client:
        client.says = lambda _: chosen("allow_once")
        session_id = await client.new()
        for mode in ("default", "ask", "default"):
            await client.call("session/set_mode", sessionId=session_id, modeId=mode)
            await client.prompt(session_id, mode)
        assert [asked["toolCall"]["rawInput"]["where"] for asked in client.asked] == ["ask"]
        await client.call("session/set_mode", sessionId=session_id, modeId="ask")
        resumed = await client.call("session/fork", sessionId=session_id, cwd="/work", mcpServers=[])
        assert resumed.data["modes"]["currentModeId"] == "default"


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_a_client_that_comes_back_is_asked_again(tmp_path: Path, method: str) -> None:
    """The call waited while no process ran: the next agent asks about it, and tells how the turn goes on and ends."""
    model = says(digs("here", "there"), reply("done"))
    async with open_runtime(model, store=tmp_path, tools=[dig], config=ASK) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(partial(service.start_turn, session_id, "go", mode="queue", idempotency_key="key"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    async with open_runtime(model, store=tmp_path, tools=[dig], config=ASK) as service, connect(service) as client:
        await client.call(method, sessionId=session_id, cwd="/work", mcpServers=[])
        first, second = await client.question(), await client.question()
        assert first["params"]["toolCall"]["rawInput"] == {"where": "here"}
        busy = await client.prompt(session_id, "and now?")
        assert busy.data["data"]["code"] == "SESSION_BUSY"
        await client.reply(second, **chosen("allow_once"))
        await client.reply(first, **chosen("reject_once"))
        while not said_last(client, "done"):
            await client.read()
        assert (DUG, statuses(client, "c0")[-2:]) == (["there"], ["asked", "failed"])
        assert statuses(client, "c1")[-3:] == ["asked", "in_progress", "completed"]
        assert (await client.prompt(session_id, "/help")).stop_reason == "end_turn"


async def test_a_client_that_comes_back_cancels_the_turn(tmp_path: Path) -> None:
    """There is no other prompt that it could mean. Its leaving alone ends nothing."""
    model = says(digs("here"), reply("done"))
    async with open_runtime(model, store=tmp_path, tools=[dig], config=ASK) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_ended_early, service, session_id)
        await trio.sleep(1)
        for cancels in (False, True):
            async with connect(service) as client:
                await client.call("session/resume", sessionId=session_id, cwd="/work", mcpServers=[])
                await client.question()
                if cancels:
                    await client.cancel(session_id)
                    await trio.sleep(1)
            await trio.sleep(1)
            assert ((await service.read(session_id)).state.turn is None) == cancels
    assert DUG == []


async def _ended_early(service: SessionService, session_id: str) -> None:
    with pytest.raises(AgentError, match="the turn was interrupted"):
        await service.start_turn(session_id, "go")


def said_last(client: Client, text: str) -> bool:
    """Return whether the newest message of the agent is a piece of text."""
    update = client.heard[-1].get("params", {}).get("update", {})
    return bool(update.get("content") == {"type": "text", "text": text})
