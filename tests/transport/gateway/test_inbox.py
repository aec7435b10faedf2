"""Inputs of gateway clients to a session that runs a turn: real sockets, the real runtime."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.models import Puppet
from tests.support.runtime import new_session, transcript
from tests.support.waiting import inbox_has
from tests.transport.clients import Client, connect, seqs
from tests.transport.gateway.serving import served
from warren.calls.facade import SessionService
from warren.conversation.messages import UserMessage


@attrs.frozen
class Scene:
    """A session in which a client's turn runs, another client, and the model in the test's hand."""

    service: SessionService
    port: int
    model: Puppet
    session_id: str
    owner: Client
    first: int
    other: Client

    async def waits(self, count: int) -> None:
        """Return once so many inputs wait."""
        await inbox_has(self.service, self.session_id, count)

    async def prompts(self) -> list[str]:
        """Return what users have said."""
        messages = await transcript(self.service, self.session_id)
        return [message.content for message in messages if isinstance(message, UserMessage)]


@asynccontextmanager
async def in_a_turn(store: Path | None) -> AsyncIterator[Scene]:
    """Begin a turn of one client and connect another, for a body."""
    model = Puppet()
    async with served(store, puppet=model) as (service, port), connect(port) as owner, connect(port) as other:
        session_id = await new_session(service, provider="puppet", model="any")
        first = await owner.send("turn/start", session_id=session_id, prompt="first")
        await model.reached(1)
        yield Scene(service, port, model, session_id, owner, first, other)


def kinds(envelopes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the types of events."""
    return [envelope["event"]["type"] for envelope in envelopes]


def assert_each_once(envelopes: list[dict[str, Any]]) -> None:
    """Check that no event is missing or double."""
    found = seqs(envelopes)
    assert found == list(range(found[0], found[-1] + 1))


@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_a_waiting_prompts_turn_is_heard_once_and_before_the_reply(
    tmp_path: Path, mode: str, *, subscribed: bool
) -> None:
    """Its client hears the turn that takes it: a queued one from the first event, a steered one from where it enters.

    A subscription beside it begins at once, though the prompt waits, and nothing comes twice.
    """
    async with in_a_turn(tmp_path) as scene:
        asked = await scene.other.send("turn/start", session_id=scene.session_id, prompt="second", mode=mode)
        await scene.waits(1)
        if subscribed:
            await scene.other.call("session/subscribe", session_id=scene.session_id)
        scene.model.say("one", None, "two", None)
        reply = await scene.other.reply(asked)
        heard = scene.other.events(scene.session_id)
        own = heard if not subscribed else heard[kinds(heard).index(BEGINS[mode]) :]
        assert_each_once(heard)
        assert (kinds(own)[0], kinds(own)[-1]) == (BEGINS[mode], "run_completed")
        assert scene.other.seen[-1] == reply
        assert reply["result"]["text"].endswith("two")
        owned = await scene.owner.reply(scene.first)
        assert (owned["result"] == reply["result"]) is (mode == "steer")
        assert await scene.prompts() == ["first", "second"]


BEGINS = {"queue": "run_started", "steer": "input_taken"}


@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_client_that_steers_its_own_turn_hears_it_once(*, subscribed: bool) -> None:
    """Both of its calls are answered with the same result, behind the last event."""
    async with in_a_turn(None) as scene:
        if subscribed:
            await scene.owner.call("session/subscribe", session_id=scene.session_id)
        asked = await scene.owner.send("turn/start", session_id=scene.session_id, prompt="faster", mode="steer")
        await scene.waits(1)
        scene.model.say("one", None, "two", None)
        replies = [await scene.owner.reply(asked), await scene.owner.reply(scene.first)]
        assert replies[0]["result"] == replies[1]["result"]
        heard = scene.owner.events(scene.session_id)
        assert_each_once(heard)
        assert (kinds(heard)[0], kinds(heard)[-1]) == ("run_started", "run_completed")
        assert all("id" in message for message in scene.owner.seen[-2:])


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_a_client_may_leave_what_it_has_said_behind(tmp_path: Path, mode: str, *, stored: bool) -> None:
    """It sends its prompt and is gone at once: the prompt is taken all the same, and who asks again is told."""
    said = {"prompt": "second", "mode": mode, "idempotency_key": "mine"}
    async with in_a_turn(tmp_path if stored else None) as scene:
        async with connect(scene.port) as leaving:
            await leaving.send("turn/start", session_id=scene.session_id, **said)
        await scene.waits(1)
        again = await scene.other.send("turn/start", session_id=scene.session_id, **said)
        scene.model.say("one", None, "two", None)
        assert (await scene.other.reply(again))["result"]["text"].endswith("two")
        known = await scene.other.call("turn/start", session_id=scene.session_id, **said)
        assert known["text"].endswith("two")
        assert await scene.prompts() == ["first", "second"]


async def test_what_was_withdrawn_is_told_to_its_sender() -> None:
    """Another client takes a prompt back: its sender's call ends, and the turn that runs does not."""
    async with in_a_turn(None) as scene:
        asked = await scene.other.send("turn/start", session_id=scene.session_id, prompt="second", mode="queue")
        await scene.waits(1)
        (waiting,) = (await scene.owner.call("session/inputs", session_id=scene.session_id))["inputs"]
        taken = {"session_id": scene.session_id, "input_id": waiting["input_id"]}
        assert await scene.owner.call("session/withdraw", **taken) == {"withdrawn": True}
        body = (await scene.other.reply(asked))["error"]["data"]
        assert (body["code"], body["details"]["cause"]) == ("AGENT_ERROR", "cancelled")
        scene.model.say("one", None)
        assert (await scene.owner.reply(scene.first))["result"]["text"] == "one"
        assert await scene.prompts() == ["first"]
