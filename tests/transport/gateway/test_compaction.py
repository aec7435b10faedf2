"""Compaction through the gateway: real sockets, the real runtime, a model in the test's hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.support.models import Puppet
from tests.transport.clients import Client, connect, gateway
from warren.conversation.options import CompactionConfig
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

KEEP_ONE: Final = CompactionConfig(recent_turn_budget=1)
LONG: Final = "many words " * 200
SUMMARY: Final = "SUMMARY: they talked"


@asynccontextmanager
async def served(
    model: Puppet, compaction: CompactionConfig | None = KEEP_ONE, *, store: Path | None = None, **settings: Any
) -> AsyncIterator[int]:
    """A runtime behind a gateway, its model in the test's hand; yields the port."""
    config = Config(store=StoreConfig(store) if store else None, model="puppet", compaction=compaction)
    async with (
        open_supervisor(config, providers={"puppet": model}, environ={}) as service,
        gateway(service, **settings) as port,
    ):
        yield port


async def talk(client: Client, model: Puppet, turns: int = 3, **options: Any) -> str:
    """Hold a conversation of long prompts and short answers; return the session."""
    model.say(*["ok", None] * turns)
    session_id = (await client.call("session/create", prompt=f"0 {LONG}", provider="puppet", **options))["session_id"]
    for number in range(1, turns):
        await client.call("turn/start", session_id=session_id, prompt=f"{number} {LONG}")
    assert isinstance(session_id, str)
    return session_id


async def begin_to_compact(client: Client, model: Puppet, session_id: str) -> int:
    """Ask for a compaction and wait until its model call has begun; return the request's id."""
    calls = model.calls
    request = await client.send("session/compact", session_id=session_id)
    await model.reached(calls + 1)
    return request


def kinds(client: Client, session_id: str) -> list[str]:
    """Name the events received of a session."""
    return [envelope["event"]["type"] for envelope in client.events(session_id)]


@pytest.mark.parametrize("stored", [True, False])
async def test_compact_by_hand(tmp_path: Path, *, stored: bool) -> None:
    """The answer is the entry of the session's history; the conversation is still there, whole."""
    model = Puppet()
    async with served(model, store=tmp_path if stored else None) as port, connect(port) as client:
        session_id = await talk(client, model)
        model.say(SUMMARY, None)
        entry = await client.call("session/compact", session_id=session_id, instructions="mind the cats")
        assert (entry["step"], entry["head"], entry["messages_before"], entry["messages_after"]) == (3, 4, 6, 3)
        assert SUMMARY in entry["summary"]
        history = await client.call("session/history", session_id=session_id)
        assert (history["total"], len(history["messages"]), history["compactions"]) == (6, 6, [entry])
        assert (await client.call("session/history", session_id=session_id, limit=2))["compactions"] == []
        assert (await client.call("session/read", session_id=session_id))["state"]["compactions"] == 1


async def test_a_watcher_sees_the_compaction_and_not_its_summary() -> None:
    """A client that follows the session gets started and completed; the summary's text is on no stream."""
    model = Puppet()
    async with served(model) as port, connect(port) as client, connect(port) as watcher:
        session_id = await talk(client, model)
        await watcher.call("session/subscribe", session_id=session_id)
        model.say("SUMMARY: ", "they talked", None)
        await client.call("session/compact", session_id=session_id)
        done = await watcher.until("compaction_completed")
        assert kinds(watcher, session_id) == ["compaction_started", "compaction_completed"]
        assert (done["event"]["messages_before"], done["event"]["messages_after"]) == (6, 3)


async def test_a_session_is_busy_while_it_is_compacted() -> None:
    """Neither a turn nor another compaction is queued, and a turn keeps a compaction off."""
    model = Puppet()
    async with served(model) as port, connect(port) as client:
        session_id = await talk(client, model)
        request = await begin_to_compact(client, model, session_id)
        for method, params in (("turn/start", {"prompt": "x"}), ("session/compact", {})):
            assert (await client.error(method, session_id=session_id, **params))["code"] == -32002
        model.say(SUMMARY, None)
        assert "result" in await client.reply(request)
        turn = await client.send("turn/start", session_id=session_id, prompt="x")
        await client.until("turn_started", session_id)
        assert (await client.error("session/compact", session_id=session_id))["code"] == -32002
        model.say("ok", None)
        assert (await client.reply(turn))["result"]["text"] == "ok"


async def test_a_compaction_counts_as_a_request_in_flight_and_can_be_interrupted() -> None:
    """At the limit of unanswered requests only the interrupt gets through; then the session is as it was."""
    model = Puppet()
    async with served(model, max_in_flight=1) as port, connect(port) as client:
        session_id = await talk(client, model)
        request = await begin_to_compact(client, model, session_id)
        refused = await client.error("session/compact", session_id=session_id)
        assert refused["data"]["details"] == {"cause": "max_in_flight"}
        assert await client.call("turn/interrupt", session_id=session_id) == {"interrupted": True}
        error = (await client.reply(request))["error"]
        assert (error["code"], error["data"]["details"]["cause"]) == (-32000, "cancelled")
        assert error["data"]["session_id"] == session_id
        assert (await client.call("session/read", session_id=session_id))["state"]["compactions"] == 0


async def test_a_client_that_leaves_does_not_end_a_compaction() -> None:
    """The request is served without it."""
    model = Puppet()
    async with served(model) as port, connect(port) as other:
        async with connect(port) as client:
            session_id = await talk(client, model)
            await begin_to_compact(client, model, session_id)
        await other.call("session/subscribe", session_id=session_id)
        model.say(SUMMARY, None)
        await other.until("compaction_completed", session_id)
        with trio.fail_after(5):
            while (await other.call("session/read", session_id=session_id))["state"]["compactions"] != 1:
                pass


async def test_a_failed_compaction_says_why() -> None:
    """The reason is in the error's details, and the session goes on."""
    model = Puppet()
    async with served(model) as port, connect(port) as client:
        session_id = await talk(client, model)
        model.say(None)
        error = await client.error("session/compact", session_id=session_id)
        details = error["data"]["details"]
        assert (error["code"], details["cause"], details["reason"]) == (-32000, "compaction_failed", "empty_summary")
        model.say("ok", None)
        assert (await client.call("turn/start", session_id=session_id, prompt="x"))["text"] == "ok"


async def test_a_session_brings_its_own_way() -> None:
    """The compaction settings of `session/create` hold for that session, from its first turn on, and no other."""
    model = Puppet()
    own = {"auto_compact_threshold": 200, "recent_turn_budget": 0, "min_turns_between_compactions": 1}
    async with served(model) as port, connect(port) as client:
        common = await talk(client, model, turns=2)
        eager = await talk(client, model, turns=1, compaction=own)
        assert "compaction_started" not in kinds(client, common)
        model.say(SUMMARY, None, "ok", None)
        await client.call("turn/start", session_id=eager, prompt="go on")
        compaction = [kind for kind in kinds(client, eager) if kind.startswith("compaction")]
        assert compaction == ["compaction_started", "compaction_completed"]
        (entry,) = (await client.call("session/history", session_id=eager))["compactions"]
        assert entry["messages_before"] == 3


@pytest.mark.parametrize("prompt", [None, "hello"])
async def test_what_is_off_is_refused(prompt: str | None) -> None:
    """Without the capability a request that carries compaction makes no session; one that does not works."""
    model = Puppet()
    async with served(model, compaction=None) as port, connect(port) as client:
        error = await client.error("session/create", prompt=prompt, compaction={})
        assert (error["code"], error["data"]["code"]) == (-32004, "SESSION_COMPACTION_DISABLED")
        assert (await client.call("session/list"))["sessions"] == []
        session_id = await talk(client, model, turns=1, compaction=None)
        assert (await client.error("session/compact", session_id=session_id))["code"] == -32004
        assert (await client.call("initialize"))["capabilities"]["session_compaction"] is False


async def test_a_session_that_is_not_there() -> None:
    """It is not found, and bad settings are named by their path."""
    async with served(Puppet()) as port, connect(port) as client:
        assert (await client.error("session/compact", session_id="nobody"))["code"] == -32001
        error = await client.error("session/create", prompt="x", compaction={"window": 0})
        assert (error["code"], error["data"]["details"]["path"]) == (-32602, "$.compaction.window")
