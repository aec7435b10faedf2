"""A turn with all that a session can do in it, interrupted or left alone by its caller at every step of its tasks."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import Asked, ask
from tests.support.checkpoints import Steps
from tests.support.checks import assert_valid_transcript, assert_whole_turns
from tests.support.crashing import actor_of
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.actors.protocol import GiveAnswer, Interrupt
from warren.base.errors import SessionNotRunningError, WarrenError
from warren.conversation.categories import Decision, Gates, Switches
from warren.conversation.events import Envelope, ToolApprovalRequested
from warren.conversation.messages import ContextMessage, ToolUseBlock, UserMessage
from warren.conversation.peers import Peer
from warren.conversation.waits import DECIDED
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
CONFIG: Final = Config(gates=Gates(shell="ask"), switches=Switches(shell="enable"))
SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CALLS: Final = (
    ToolUseBlock("c1", "shell", {}),
    ToolUseBlock("c2", "send_message", {"to": "bob", "body": "hello"}),
    ToolUseBlock("c3", "send_request", {"to": "bob", "intent": "count"}),
)
STRIDE: Final = 5
"""The suite takes one step in so many, other ones for each way to end a turn; the long tests take all of them."""


@tool(category="shell")
async def shell() -> str:
    """Take a second."""
    await trio.sleep(1)
    return "done"


async def play(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Call both tools where the prompt says so; give data where that is asked for."""
    await trio.sleep(1)
    if request.answer_schema is not None:
        return reply('{"n": 1}')
    last = request.messages[-1]
    return reply("", *CALLS) if isinstance(last, UserMessage) and last.content == "work" else reply("ok")


@attrs.define(eq=False)
class Scene:
    """Calls that run at once in one session, and their outcomes."""

    how: str
    steps: Steps
    asked: dict[str, Asked[Any]] = attrs.field(factory=dict)
    besides: dict[str, Asked[Any]] = attrs.field(factory=dict)

    async def play(self, folder: Path) -> None:
        """Start, queue and steer; at the step interrupt the turn or let its caller go; then look."""
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with (
            open_runtime(FunctionModel(play), store=folder, tools=[shell], config=CONFIG) as service,
            trio.open_nursery() as nursery,
        ):
            session_id = await new_session(service, peer=Peer("ann", ("bob",)))
            await new_session(service, peer=Peer("bob", ("ann",), keep_alive=True))
            self.steps.act = lambda: self._disturb(service, session_id)
            trio.lowlevel.add_instrument(self.steps)
            self._ask_all(nursery, service, session_id)
            for asked in self._all:
                with trio.fail_after(60):
                    await asked.ended.wait()
            trio.lowlevel.remove_instrument(self.steps)
            await self._check(service, session_id)
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    @property
    def _all(self) -> Sequence[Asked[Any]]:
        return *self.asked.values(), *self.besides.values()

    def _ask_all(self, nursery: trio.Nursery, service: Service, session_id: str) -> None:
        def approve(envelope: Envelope) -> None:
            actor = actor_of(service, session_id)
            if isinstance(envelope.event, ToolApprovalRequested) and actor is not None:
                actor.mailbox.tell(GiveAnswer(DECIDED, envelope.event.id, Decision(allow=True)))

        for mode, prompt in (("busy", "work"), ("steer", "faster"), ("queue", "then")):
            options: dict[str, Any] = {"mode": mode, "on_event": approve}
            options |= {"output_schema": SCHEMA} if mode != "steer" else {}
            self.asked[prompt] = ask(nursery, service.start_turn, session_id, prompt, **options)
        self.besides["it rains"] = ask(nursery, service.inject_context, session_id, "it rains")
        self.besides["fork"] = ask(nursery, service.fork, session_id)

    def _disturb(self, service: Service, session_id: str) -> None:
        actor = actor_of(service, session_id)
        if self.how == "leave":
            for asked in self._all:
                asked.scope.cancel()
        elif actor is not None:
            with contextlib.suppress(SessionNotRunningError):
                actor.mailbox.tell(Interrupt())

    async def _check(self, service: Service, session_id: str) -> None:
        await trio.sleep(60)
        assert service.health().running_turns == 0
        assert [each.text for each in await service.inputs(session_id)] in ([], ["it rains"])
        messages = await transcript(service, session_id)
        assert_valid_transcript(messages)
        assert_whole_turns(each.event for each in await replay(service, session_id))
        said = [each.content for each in messages if isinstance(each, UserMessage)]
        told = [each.content for each in messages if isinstance(each, ContextMessage)]
        await self._check_besides(service, told)
        for prompt, asked in self.asked.items():
            assert said.count(prompt) <= 1
            assert self.how == "leave" or (prompt in said) or isinstance(asked.error, WarrenError)
        assert (await service.start_turn(session_id, "again")).text == "ok"

    async def _check_besides(self, service: Service, told: Sequence[str]) -> None:
        """Whatever becomes of the turn, what is no part of it is whole, or not there where its caller has left."""
        fork = self.besides["fork"].result
        assert self.how == "leave" or fork is not None
        assert self.how == "leave" or self.besides["it rains"].error is None
        assert told.count("it rains") <= 1
        if fork is not None:
            assert_valid_transcript(await transcript(service, fork.state.session_id))
            assert (await service.start_turn(fork.state.session_id, "again")).text == "ok"


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("how", "first"), [("interrupt", 1), ("leave", 3)])
async def test_at_every_step(tmp_path: Path, how: str, first: int, stride: int) -> None:
    """It ends soon, each turn has one end, the transcript is one that providers take, and the next turn works."""
    whole = Scene(how, Steps(0))
    await whole.play(tmp_path / "whole")
    assert {each.error for each in whole.asked.values()} == {None}
    assert whole.steps.count > 50
    for at in range(min(first, stride), whole.steps.count, stride):
        try:
            await Scene(how, Steps(at)).play(tmp_path / str(at))
        except Exception as exc:
            exc.add_note(f"at step {at}")
            raise
