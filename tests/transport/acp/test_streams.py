"""Clients that read slowly, leave, or send what is no protocol."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_one_way_pair, wait_all_tasks_blocked

from tests.support.asking import ask
from tests.support.envelopes import NOW
from tests.support.fake_service import FakeService, FakeTurn
from tests.support.models import FunctionModel, GatedModel, reply, stuck
from tests.support.runtime import new_session, open_runtime, transcript
from tests.transport.acp.client import FOLDER, Client, cancel, connect, said
from warren.base.retention import Retention
from warren.calls.base import Call
from warren.calls.reading import HistoryRequest
from warren.calls.turns import TurnCall
from warren.conversation.events import (
    Envelope,
    Event,
    RunCompleted,
    RunStarted,
    TextDelta,
    ToolApprovalRequested,
    ToolApprovalResolved,
    TurnResumed,
)
from warren.conversation.messages import AssistantMessage, ToolUseBlock, UserMessage
from warren.conversation.views import HistoryEntry, HistoryPage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.storage.maintenance.retention import plan, prune
from warren.transport.acp import AgentSettings, agent_dispatcher, serve_acp
from warren.transport.acp.content import AcpPrompt
from warren.transport.acp.prompt import PendingPrompt

R = TypeVar("R")

PIECES = 3000
LOGGED = 6
"""Rows of the log that a turn without tools has."""


async def talkative(_request: ModelRequest, emit: Any) -> ModelReply:
    """Say much more than may wait for a client."""
    for number in range(PIECES):
        emit(TextPiece(f"{number} "))
        if number % 7 == 0:
            await trio.lowlevel.checkpoint()
    return reply("".join(f"{number} " for number in range(PIECES)))


async def nobody_asks(event: ToolApprovalRequested, *, task_status: trio.TaskStatus[None]) -> None:
    """Take what never comes."""
    raise NotImplementedError(event, task_status)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_slow_reader_gets_everything_and_the_answer_last(tmp_path: Path, *, stored: bool) -> None:
    """The turn does not wait for a client that reads nothing; the client then reads every word in order."""
    model = FunctionModel(talkative)
    async with (
        open_runtime(model, store=tmp_path if stored else None) as service,
        connect(service, lockstep=True) as client,
    ):
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        await wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.message_count == 2
        ended = await client.answer_to(prompt)
        assert ended.text() == "".join(f"{number} " for number in range(PIECES))
        assert ended.stop_reason == "end_turn"
        assert ended.kinds()[-1] == "session_info_update"


async def test_a_slow_reader_whose_events_are_no_longer_kept(tmp_path: Path) -> None:
    """A message that retention removes before the client has read it is left out, and the prompt ends all the same."""
    told, reading = list[Event](), trio.Event()

    async def tell(envelope: Envelope) -> None:
        await reading.wait()
        told.append(envelope.event)

    config = StoreConfig(tmp_path)
    async with open_runtime(FunctionModel(talkative), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        prompt = ask(nursery, PendingPrompt(service, session_id).turn, AcpPrompt("go"), tell, nobody_asks)
        await wait_all_tasks_blocked()
        async with service.subscribe(session_id, after_seq=0) as events:
            end = [await anext(events) for _ in range(LOGGED)][-1].timestamp
        prune(config, plan(config, Retention(events=1.0), end + timedelta(seconds=1)), rest=lambda _: None)
        reading.set()
        with trio.fail_after(10):
            await prompt.ended.wait()
    assert prompt.error is None
    assert isinstance(told[-1], RunCompleted)
    assert 0 < sum(isinstance(event, TextDelta) for event in told) < PIECES


async def test_the_turn_of_another_caller_is_not_relayed() -> None:
    """A turn that ends just before the prompt's own turn begins is neither told to the client nor taken for its own."""
    told = list[Event]()

    class Late(FakeService):
        """A service in which another caller is quicker."""

        async def perform(self, call: Call[R]) -> R:
            if isinstance(call, TurnCall):
                await super().perform(TurnCall(call.session_id, "theirs"))
            return await super().perform(call)

    async def tell(envelope: Envelope) -> None:
        told.append(envelope.event)

    with trio.fail_after(10):
        result = await PendingPrompt(Late(), "s1").turn(AcpPrompt("a b c"), tell, nobody_asks)
    assert isinstance(told[0], RunStarted)
    assert (told[0].prompt, [type(each) for each in told].count(RunCompleted)) == ("a b c", 1)
    assert "".join(each.delta for each in told if isinstance(each, TextDelta)) == "abc"
    assert result.text == "a b c"


async def test_tool_calls_that_a_slow_reader_missed_come_after_all() -> None:
    """Not a single call or result is left out of many more than may wait."""

    @tool
    async def count() -> str:
        """Count."""
        return "one more"

    async def calls(request: ModelRequest, _emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if isinstance(request.messages[-1], UserMessage):
            return reply("", *(ToolUseBlock(f"c{number}", "count") for number in range(300)))
        return reply("done")

    async with (
        open_runtime(
            FunctionModel(calls), tools=[count], config=Config(limits=Limits(max_answer_calls=300))
        ) as service,
        connect(service, lockstep=True) as client,
    ):
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        await wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.message_count == 4
        ended = await client.answer_to(prompt)
        for status in ("in_progress", "completed"):
            got = {each["toolCallId"] for each in ended.only("tool_call_update") if each["status"] == status}
            assert len(got) == 300, status
        assert len(ended.only("tool_call")) == 300


async def test_a_client_that_leaves_takes_nothing_with_it(tmp_path: Path) -> None:
    """Its turn is ended and stored, and the agent ends."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service:
        async with connect(service) as client:
            session_id = await client.new()
            await client.write(client.request("session/prompt", sessionId=session_id, prompt=said("go")))
            await client.read()
        messages = await transcript(service, session_id)
        assert isinstance(messages[-1], AssistantMessage)
        assert messages[-1].stop_reason == "cancelled"
        assert not (await service.read(session_id)).state.is_active


async def test_the_end_of_the_input_is_answered() -> None:
    """A client that says no more still hears how its prompt ended, and then the end of the output."""
    async with open_runtime(FunctionModel(stuck)) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        await client.stream.send_stream.aclose()
        assert (await client.answer_to(prompt)).stop_reason == "cancelled"
        assert await client.read() is None


@attrs.define(eq=False)
class Library(FakeService):
    """Has a conversation of a hundred large messages in every session, and counts how many of them were read."""

    read_so_far: int = 0

    async def perform(self, call: Call[R]) -> R:
        if not isinstance(call, HistoryRequest):
            return await super().perform(call)
        places = range(call.offset, min(100, call.offset + call.limit))
        self.read_so_far += len(places)
        await trio.lowlevel.checkpoint()
        entries = tuple(HistoryEntry(place, NOW, UserMessage(f"{place:02}" * 250_000)) for place in places)
        return cast("R", HistoryPage(call.session_id, entries, call.offset, 100))


@pytest.mark.virtual_time
async def test_a_conversation_is_read_as_the_client_reads() -> None:
    """A client that loads long sessions and reads nothing fills no memory; then it reads, and gets all of them."""
    service = Library()
    async with connect(service, lockstep=True) as client:
        loads = [client.request("session/load", sessionId=each, cwd="/", mcpServers=[]) for each in ("s1", "s2")]
        await client.write(*loads)
        await wait_all_tasks_blocked()
        assert 0 < service.read_so_far <= 30
        told: list[str] = []
        while len(told) < 200:
            message = await client.read()
            assert message is not None
            if message.get("method") == "session/update" and "content" in message["params"]["update"]:
                told.append(message["params"]["update"]["content"]["text"][:2])
        assert told == [f"{place:02}" for place in range(100)] * 2


@pytest.mark.virtual_time
async def test_a_client_that_never_reads_does_not_hold_up_the_end() -> None:
    """Once told to stop, the agent waits for such a client for some seconds, no longer."""
    to_agent, incoming = memory_stream_one_way_pair()
    outgoing = Stuffed()
    async with open_runtime(FunctionModel(stuck)) as service:
        session_id = await new_session(service)
        stop = trio.CancelScope()
        streams = (incoming, outgoing)
        client = Client(trio.StapledStream(to_agent, incoming))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_acp, service, AgentSettings(FOLDER), streams, stop)
                await client.write(client.request("session/prompt", sessionId=session_id, prompt=said("go")))
                await wait_all_tasks_blocked()
                stop.cancel()


@attrs.define
class Stuffed(trio.abc.SendStream):
    """A pipe that nobody reads."""

    async def send_all(self, _data: object) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets an error under its id, and the next line is read as ever."""
    monkeypatch.setattr(agent_dispatcher, "MAX_LINE", 1000)
    async with open_runtime() as service, connect(service) as client:
        await client.write(b'{"jsonrpc":"2.0","id":0,"method":"' + b"x" * 5000 + b'"}')
        refused = await client.read()
        assert refused is not None
        assert (refused["id"], refused["error"]["code"]) == (0, -32600)
        assert (await client.call("initialize", protocolVersion=1)).data["protocolVersion"] == 1


async def test_too_many_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit each gets an error; a cancel gets through all the same."""
    monkeypatch.setattr(agent_dispatcher, "MAX_IN_FLIGHT", 2)
    async with open_runtime(GatedModel()) as service, connect(service) as client:
        sessions = [await client.new(), await client.new()]
        prompts = [client.request("session/prompt", sessionId=each, prompt=said("go")) for each in sessions]
        await client.write(*prompts)
        refused = (await client.call("session/list")).data
        assert (refused["code"], refused["data"]["code"]) == (-32603, "CAPACITY_EXCEEDED")
        await client.write(*map(cancel, sessions))
        for prompt in prompts:
            assert (await client.answer_to(prompt)).stop_reason == "cancelled"


REQUESTS = [
    json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()
    for method, params in (
        ("initialize", {"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": True}}}),
        ("session/new", {"cwd": "/work", "mcpServers": [{"name": "a", "command": "b", "args": [], "env": []}]}),
        ("session/load", {"sessionId": "SESSION", "cwd": "/work", "mcpServers": []}),
        ("session/resume", {"sessionId": "SESSION", "cwd": "/work"}),
        ("session/list", {"cwd": "/work", "cursor": "0"}),
        ("session/prompt", {"sessionId": "SESSION", "prompt": [{"type": "text", "text": "hello"}]}),
        ("session/prompt", {"sessionId": "SESSION", "prompt": [{"type": "resource", "resource": {"uri": "a"}}]}),
        ("session/set_mode", {"sessionId": "SESSION", "modeId": "default"}),
        ("session/cancel", {"sessionId": "SESSION"}),
        ("session/close", {"sessionId": "SESSION"}),
        ("session/delete", {"sessionId": "SESSION"}),
    )
]
VALUES = [b"null", b"{}", b"[]", b"-1", b'""', b"1e999", b'"\\ud800"', b"true", b"9" * 30, b"[[[[[[", b'{"a":', b"\xff"]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a request with a few places in it changed, cut out or doubled."""
    line = bytearray(draw(st.sampled_from(REQUESTS)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(line)))
        end = draw(st.integers(start, min(len(line), start + 12)))
        line[start:end] = draw(st.one_of(st.just(b""), st.sampled_from(VALUES), st.binary(max_size=4)))
    return bytes(line).replace(b"\n", b" ")


async def survives(lines: list[bytes]) -> None:
    """Send lines to an agent; check that it answers in the protocol, keeps its insides to itself, and goes on."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        await client.write(*(line.replace(b"SESSION", session_id.encode()) for line in lines))
        await client.write({"jsonrpc": "2.0", "id": "last", "method": "initialize", "params": {"protocolVersion": 1}})
        while (message := await client.read_raw()) is not None and message.get("id") != "last":
            assert message.get("error", {}).get("message") != "internal error", lines
            assert "Traceback" not in json.dumps(message)
        assert message is not None
        assert message["result"]["protocolVersion"] == 1


@given(st.lists(mutated(), min_size=1, max_size=12))
async def test_no_line_brings_the_agent_down(lines: list[bytes]) -> None:
    """Whatever comes in, the next request is answered; some hundred lines."""
    await survives(lines)


@pytest.mark.soak
@given(st.lists(mutated(), min_size=1, max_size=12))
async def test_no_line_out_of_many_brings_the_agent_down(lines: list[bytes]) -> None:
    """The same with ten thousand lines."""
    await survives(lines)


async def test_a_call_is_asked_about_as_long_as_it_waits() -> None:
    """A question of a kept call stays open over an interruption, also if it is put again; that of a lost one goes."""
    asked, dropped = list[str](), list[str]()

    def waits(call: str) -> ToolApprovalRequested:
        return ToolApprovalRequested(call, "dig", {}, "shell", 1_000)

    async def steps(turn: FakeTurn) -> None:
        kept = turn.publish(waits("kept")).seq
        for event in (waits("lost"), TurnResumed(1, kept), waits("kept")):
            turn.publish(event)
            await wait_all_tasks_blocked()
        assert (asked, dropped) == (["kept", "lost", "kept"], ["lost", "kept"])
        turn.publish(ToolApprovalResolved("kept", "dig", "allow"))

    async def approve(event: ToolApprovalRequested, *, task_status: trio.TaskStatus[None]) -> None:
        asked.append(event.id)
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            dropped.append(event.id)

    async def tell(_envelope: Envelope) -> None:
        await trio.lowlevel.checkpoint()

    with trio.fail_after(10):
        await PendingPrompt(FakeService(steps), "s1").turn(AcpPrompt("go"), tell, approve)
    assert dropped == ["lost", "kept", "kept"]
