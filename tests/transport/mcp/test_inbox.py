"""Inputs that wait for a session, from MCP's clients."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.models import Puppet
from tests.support.runtime import new_session, open_runtime, transcript
from tests.support.waiting import inbox_has
from tests.transport.mcp.clients import at_rest, connected
from warren.actors.calls.service import Service
from warren.calls.facade import SessionService
from warren.conversation.messages import ContextMessage, UserMessage


async def said(service: SessionService, session_id: str) -> list[str]:
    """Return what users and others have said."""
    messages = await transcript(service, session_id)
    return [message.content for message in messages if isinstance(message, UserMessage | ContextMessage)]


async def running(service: Service, model: Puppet, nursery: trio.Nursery) -> str:
    """Return a session in which a turn of somebody else runs."""
    session_id = await new_session(service)
    nursery.start_soon(service.start_turn, session_id, "first")
    await model.reached(1)
    return session_id


@pytest.mark.parametrize("stored", [False, True])
async def test_cancelling_a_call_that_waits_withdraws_its_prompt(tmp_path: Path, *, stored: bool) -> None:
    """No turn comes of it, and the turn that it waited for is not touched."""
    model = Puppet()
    async with (
        open_runtime(model, store=tmp_path if stored else None) as service,
        connected(service) as program,
        trio.open_nursery() as nursery,
    ):
        session_id = await running(service, model, nursery)
        async with trio.open_nursery() as calling:
            calling.start_soon(lambda: program.ask("warren_resume", session_id=session_id, prompt="x", mode="queue"))
            await inbox_has(service, session_id, 1)
            (shown,) = (await program.ask("warren_inputs", session_id=session_id))["inputs"]
            assert (shown["text"], shown["kind"]) == ("x", "queue")
            calling.cancel_scope.cancel()
        await inbox_has(service, session_id, 0)
        model.say("done", None)
        assert await at_rest(service, session_id) == "done"
        assert await said(service, session_id) == ["first"]


async def test_cancelling_a_call_that_steers_leaves_the_turn_to_its_owner(tmp_path: Path) -> None:
    """Its input was taken; the turn is somebody else's, and is not interrupted."""
    model = Puppet()
    async with (
        open_runtime(model, store=tmp_path) as service,
        connected(service) as program,
        trio.open_nursery() as nursery,
    ):
        session_id = await running(service, model, nursery)
        async with trio.open_nursery() as calling:
            calling.start_soon(
                lambda: program.call("warren_resume", watch=True, session_id=session_id, prompt="faster", mode="steer")
            )
            await inbox_has(service, session_id, 1)
            model.say("one", None)
            await program.hear("input taken")
            calling.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        model.say("two", None)
        assert await at_rest(service, session_id) == "two"
        assert await said(service, session_id) == ["first", "faster"]


async def test_a_prompt_is_taken_once_and_context_opens_no_turn() -> None:
    """A key brings the first result again; what was injected is read with the next prompt."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service) as program:
        session_id = await new_session(service)
        told: dict[str, Any] = {
            "session_id": session_id,
            "text": "it rains",
            "source": "sensor",
            "idempotency_key": "k1",
        }
        for _ in range(2):
            assert await program.ask("warren_inject_context", **told) == {"injected": True}
        model.say("so what", None)
        asked: dict[str, Any] = {"session_id": session_id, "prompt": "well?", "mode": "queue", "idempotency_key": "k2"}
        first = await program.ask("warren_resume", **asked)
        assert await program.ask("warren_resume", **asked) == first
        assert sorted(await said(service, session_id)) == ["it rains", "well?"]
