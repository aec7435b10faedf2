"""Requests that wait: the response of a peer is the result of the call that has sent the request."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript
from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError
from warren.conversation.events import RunStarted
from warren.conversation.messages import ContextMessage, ToolResult, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.peers import Peer
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
DAY = 24 * 3600.0


@attrs.define(eq=False)
class World:
    """A model that asks its peer if a prompt is JSON, and answers each request whose intent is not `hang`.

    Attributes:
        ahead: seconds by which the clock of the store was put forward.
        asked: the prompts of the model calls, in order.
    """

    ahead: float = 0.0
    asked: list[str] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer by the newest message."""
        await trio.sleep(1)
        last = request.messages[-1]
        text = last.content if isinstance(last, UserMessage | ContextMessage) else ""
        self.asked.append(text)
        if text.startswith("{"):
            return reply("", ToolUseBlock("call-1", "send_request", {"to": "bob", **json.loads(text)}))
        if text.startswith("Request ") and "hang" not in text:
            request_id, name = text.split()[1], text.split("peer ")[1].split()[0].strip(",:")
            answer = {"to": name, "in_reply_to": request_id, "status": "ok", "result": "1 2 3"}
            return reply("", ToolUseBlock("call-2", "send_response", answer))
        prompts = [at for at, each in enumerate(request.messages) if isinstance(each, UserMessage)]
        prompt = str(request.messages[prompts[-1]])
        if "again" in prompt and len(request.messages) - prompts[-1] == 3:
            return reply("", ToolUseBlock("call-3", "send_request", {"to": "bob", "intent": "count"}))
        return reply("ok")

    def open(self, store: Path | None, config: Config | None = None) -> AbstractAsyncContextManager[Service]:
        """Open a runtime whose store has the virtual clock."""
        return open_runtime(self, store=store, config=config or Config(), clock=self.clock)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()


async def pair(service: Service, *, wakes: bool = True) -> tuple[str, str]:
    """Return ann, who asks, and bob, who answers if he `wakes`."""
    ann = await new_session(service, peer=Peer("ann", ("bob",), keep_alive=True))
    return ann, await new_session(service, peer=Peer("bob", ("ann",), keep_alive=wakes))


def asking(intent: str = "count", **more: Any) -> str:
    """Return the prompt that has ann ask bob."""
    return json.dumps({"intent": intent, "wait": True, **more})


async def results(service: Service, session_id: str) -> list[ToolResult]:
    """Return all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def started(service: Service, session_id: str) -> list[str]:
    """Return the prompts of the turns that began."""
    return [each.event.prompt for each in await replay(service, session_id) if isinstance(each.event, RunStarted)]


async def request_of(service: Service, bob: str) -> str:
    """Return the id of the request that waits in bob's inbox, once it does."""
    while not (waiting := await service.inputs(bob)):  # noqa: ASYNC110 - there are no events of it
        await trio.sleep(0.1)
    assert "from peer ann, which waits for the response: " in waiting[0].text
    return waiting[0].input_id


async def respond(service: Service, bob: str, request_id: str, body: str = "five") -> None:
    """Have a program respond for bob."""
    await service.send_message(bob, "ann", body, kind="response", request_id=request_id, status="ok")


async def test_the_response_is_the_result(store: Path | None) -> None:
    """It is no message besides, and begins no turn."""
    world = World()
    async with world.open(store) as service:
        ann, bob = await pair(service)
        result = await service.start_turn(ann, asking())
        (found,) = await results(service, ann)
        request_id = next(each for each in world.asked if each.startswith("Request")).split()[1]
        assert found.content == f"Response from peer bob to your request {request_id}: ok\n\n1 2 3"
        assert not found.is_error
        assert result.text == "ok"
        await trio.sleep(60)
        assert await service.inputs(ann) == await service.inputs(bob) == ()
        assert len(await started(service, ann)) == 1


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_a_program_responds(store: Path | None, durability: Literal["step", "turn"]) -> None:
    """Once: what it says besides is a message."""
    async with World().open(store) as service, trio.open_nursery() as nursery:
        ann, bob = await pair(service, wakes=False)
        asked = ask(nursery, service.start_turn, ann, asking(), durability=durability)
        request_id = await request_of(service, bob)
        await respond(service, bob, request_id)
        await respond(service, bob, request_id, "six")
        await trio.sleep(60)
        assert asked.error is None
        (found,) = await results(service, ann)
        assert found.content.endswith("ok\n\nfive")
        texts = [each.content for each in await transcript(service, ann) if hasattr(each, "content")]
        assert [text for text in texts if "\n\nsix" in str(text)] == [
            f"Response from peer bob to your request {request_id}: ok\n\nsix"
        ]
        assert await service.inputs(ann) == ()


async def test_a_late_response_is_a_message(store: Path | None) -> None:
    """The call ends at its time limit."""
    async with World().open(store) as service:
        ann, bob = await pair(service, wakes=False)
        await service.start_turn(ann, asking(time_limit=30))
        (found,) = await results(service, ann)
        assert found.is_error
        assert "not responded in time" in found.content
        await respond(service, bob, await request_of(service, bob))
        await trio.sleep(60)
        (message,) = [
            each for each in await transcript(service, ann) if "\n\nfive" in str(getattr(each, "content", ""))
        ]
        assert isinstance(message, UserMessage)  # she is kept alive, and it has begun a turn
        assert len(await started(service, ann)) == 2
        assert await service.inputs(ann) == ()


async def test_two_that_wait_for_each_other(store: Path | None) -> None:
    """They do so until the first time limit is over; who goes on then reads the request of the other, and answers."""
    async with World().open(store) as service, trio.open_nursery() as nursery:
        ann, bob = await pair(service)
        first = ask(nursery, service.start_turn, ann, asking(time_limit=30))
        second = ask(nursery, service.start_turn, bob, asking(to="ann", time_limit=600))
        await trio.sleep(25)
        assert not first.ended.is_set()
        assert not second.ended.is_set()
        with trio.fail_after(60):
            await first.value()
            await second.value()
        late = (await results(service, ann))[0]
        assert late.is_error
        assert "not responded in time" in late.content
        answered = (await results(service, bob))[0]
        assert not answered.is_error
        assert "1 2 3" in answered.content


async def test_an_interrupted_asker_gets_a_message(store: Path | None) -> None:
    """Nobody waits any more."""
    async with World().open(store) as service, trio.open_nursery() as nursery:
        ann, bob = await pair(service, wakes=False)
        asked = ask(nursery, service.start_turn, ann, asking())
        request_id = await request_of(service, bob)
        await trio.sleep(5)
        await service.interrupt(ann)
        await respond(service, bob, request_id)
        await trio.sleep(60)
        assert isinstance(asked.error, AgentError)
        assert len(await started(service, ann)) == 2
        assert [text for text in map(str, await transcript(service, ann)) if "five" in text]


async def test_the_asker_needs_no_process(tmp_path: Path) -> None:
    """It waits over a restart for days, asks once, and hears what was said while it was not in memory."""
    world, config = World(), Config(limits=Limits(approval_timeout=30 * DAY))
    async with world.open(tmp_path, config) as service:
        ann, bob = await pair(service, wakes=False)
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, ann, asking(), mode="queue", idempotency_key="k")
            request_id = await request_of(service, bob)
            await trio.sleep(5)
            turn = (await service.read(ann)).state.turn
            assert turn is not None
            assert (turn.state, [each.reason for each in turn.waiting_for]) == ("waiting", ["peer"])
            nursery.cancel_scope.cancel()
    world.ahead = 3 * DAY
    async with world.open(tmp_path, config) as service:
        assert [each.input_id for each in await service.inputs(bob)] == [request_id]
        await respond(service, bob, request_id)
        with trio.fail_after(60):
            result = await service.start_turn(ann, asking(), mode="queue", idempotency_key="k")
        assert result.text == "ok"
        (found,) = await results(service, ann)
        assert found.content.endswith("five")


@pytest.mark.parametrize(
    ("given", "problem"), [({"wait": False, "time_limit": 3}, "time_limit"), ({"time_limit": 0}, "time_limit")]
)
async def test_a_bad_time_limit_is_refused(given: dict[str, Any], problem: str) -> None:
    """The request is not sent."""
    async with World().open(None) as service:
        ann, bob = await pair(service, wakes=False)
        await service.start_turn(ann, asking(**given))
        (found,) = await results(service, ann)
        assert (found.is_error, problem in found.content) == (True, True)
        assert await service.inputs(bob) == ()


async def test_a_response_counts_in_the_chain(store: Path | None) -> None:
    """A request that is answered within a turn brings the next one nearer to the bound."""
    async with World().open(store, Config(limits=Limits(peer_hops=1))) as service:
        ann, _ = await pair(service)
        await service.start_turn(ann, asking("count again"))
        first, second = await results(service, ann)
        assert (first.is_error, second.is_error) == (False, True)
        assert "limits.peer_hops" in second.content
        await service.start_turn(ann, asking())
        assert not (await results(service, ann))[-1].is_error
