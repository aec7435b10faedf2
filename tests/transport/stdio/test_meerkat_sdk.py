"""Meerkat's own Python client, unchanged, with `warren rpc --contract` in the place of `rkat-rpc`."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import pytest
from meerkat import MeerkatClient, MeerkatError  # type: ignore[import-untyped]
from meerkat.events import (  # type: ignore[import-untyped]
    Event,
    RunCompleted,
    RunFailed,
    RunStarted,
    TextComplete,
    TextDelta,
    ToolCallRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultReceived,
    TurnCompleted,
    TurnStarted,
    UnknownEvent,
)

from tests.conftest import ROOT
from tests.transport.cli.process import clean_environ

ECHOES = [RunStarted, TurnStarted, TextDelta, TextComplete, TurnCompleted, RunCompleted]
LIMIT = 30.0


@attrs.frozen
class Rkat:
    """A program in the place of `rkat-rpc`.

    Attributes:
        folder: where it and its stores are.
        path: the program.
    """

    folder: Path
    path: Path

    @asynccontextmanager
    async def client(self, **scope: Any) -> AsyncIterator[MeerkatClient]:
        """Connect as a user of the client does."""
        client = MeerkatClient(rkat_path=str(self.path))
        await client.connect(**{"realm_id": "r", "state_root": str(self.folder / "stores"), **scope})
        process = client._process  # noqa: SLF001 - its exit code is told nowhere else
        assert process is not None
        assert process.stderr is not None
        try:
            yield client
        finally:
            await client.close()
            assert (process.returncode, await process.stderr.read()) == (0, b"")

    def script(self, *steps: dict[str, Any]) -> str:
        """Write a script for the model; return the model's name."""
        file = self.folder / "script.json"
        file.write_text(json.dumps({"steps": steps, "loop": True}), encoding="utf-8")
        return f"scripted:{file}"


@pytest.fixture
def rkat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rkat:
    """Make the script that the documentation tells of, in an environment without settings of our own."""
    for name in os.environ.keys() - clean_environ().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    path = tmp_path / "rkat-rpc"
    path.write_text(script("0.6"), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Rkat(tmp_path, path)


def script(version: str) -> str:
    """Return the script in `docs/stdio.md`, for a version."""
    page = (ROOT / "docs" / "stdio.md").read_text(encoding="utf-8")
    start = page.index("#!/bin/sh")
    return page[start : page.index("```", start)].replace("--contract 0.9", f"--contract {version}")


def on_asyncio(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the client where it lives."""
    asyncio.run(asyncio.wait_for(body(), LIMIT))


async def collect(stream: Any) -> list[Event]:
    """Return every event of a stream."""
    async with stream as events:
        return [event async for event in events]


def kinds(events: list[Event]) -> list[type]:
    """Name the events, those of a kind in a row once: how many deltas a text comes in is nobody's promise."""
    return [kind for kind, _ in groupby(map(type, events))]


def test_sessions_from_first_to_last(rkat: Rkat) -> None:
    """Handshake, turns with and without a stream, views, history, settings and the end of a session."""

    async def body() -> None:
        async with rkat.client() as client:
            assert client.has_capability("session_store")
            assert not client.has_capability("memory_store")
            session = await client.create_session("hello there", labels={"team": "a"})
            assert (session.text, session.turns, session.usage.output_tokens) == ("hello there", 1, 3)
            stream = session.stream("one two")
            events = await collect(stream)
            assert kinds(events) == ECHOES
            assert events[0] == RunStarted(session.id, "one two")
            assert (stream.result.text, session.text) == ("one two", "one two")
            first = client.create_session_streaming([{"type": "text", "text": "new one"}])
            assert kinds(await collect(first)) == ECHOES
            assert first.session_id != session.id
            rows = await client.list_sessions()
            assert {row.session_id: row.message_count for row in rows} == {first.session_id: 2, session.id: 4}
            assert [row.session_id for row in await client.list_sessions(labels={"team": "a"}, limit=5)] == [session.id]
            details = await client.read_session(session.id)
            assert (details.labels, details.last_assistant_text) == ({"team": "a"}, "one two")
            assert (details.model, details.provider) == ("echo", "echo")
            assert details.updated_at >= details.created_at > 1_700_000_000
            page = await session.history(offset=1, limit=2)
            assert (page.message_count, page.has_more) == (4, True)
            assert [(message.role, message.content) for message in page.messages][1] == ("user", "one two")
            assert [block.text for block in page.messages[0].blocks] == ["hello there"]
            config = await client.get_config()
            assert config["config"]["model"] == "echo"
            catalog = await client.get_models_catalog()
            assert catalog["contract_version"] == {"major": 0, "minor": 6, "patch": 34}
            assert [(each["provider"], each["default_model_id"]) for each in catalog["providers"]] == [("echo", "echo")]
            await session.interrupt()
            await session.archive()
            assert [row.session_id for row in await client.list_sessions()] == [first.session_id]
            assert (await session.history()).message_count == 4

    on_asyncio(body)


def test_deferred_sessions_and_options(rkat: Rkat) -> None:
    """A session without a turn, instructions, budgets, and options that ask for nothing."""

    async def body() -> None:
        async with rkat.client() as client:
            options: dict[str, Any] = {
                "system_prompt": "be brief",
                "additional_instructions": ["and kind"],
                "budget_limits": {"max_tokens": 10_000, "max_duration": {"secs": 60, "nanos": 0}},
                "enable_shell": False,
                "keep_alive": False,
                "app_context": {"anything": [1]},
            }
            deferred = await client.create_deferred_session("later", **options)
            assert (await client.read_session(deferred.id)).message_count == 1
            first = await deferred.start_turn("now", additional_instructions=["first this"])
            assert first.text == "later\n\nfirst this\n\nnow"
            history = await deferred.history()
            assert history.messages[0].content == "be brief\n\nand kind"
            told = {"source": "sensor", "idempotency_key": "once"}
            answers = [await client.inject_context(deferred.id, "it rains", **told) for _ in range(2)]
            assert answers == [{"status": "staged"}, {"status": "duplicate"}]
            assert (await deferred.start_turn("and now?")).text == "and now?"
            said = [message.content for message in (await deferred.history()).messages if message.role == "user"]
            assert sorted(said) == sorted(["later\n\nfirst this\n\nnow", "it rains", "and now?"])
            limited = await client.create_session("x", budget_limits={"max_tokens": 1})
            with pytest.raises(MeerkatError) as caught:
                await limited.turn("there is nothing left")
            assert caught.value.code == "BUDGET_EXHAUSTED"

    on_asyncio(body)


def test_a_turn_is_interrupted(rkat: Rkat) -> None:
    """The stream ends with the failure, the caller gets the error, and the session takes another turn."""

    async def body() -> None:
        model = rkat.script({"chunks": ["half ", "an answer"], "chunk_delay": 30})
        async with rkat.client() as client:
            session = await client.create_session("hi")
            events: list[Event] = []

            async def interrupt_when_it_speaks() -> None:
                async with session.stream("x", model=model) as stream:
                    async for event in stream:
                        events.append(event)
                        if isinstance(event, TextDelta):
                            with pytest.raises(MeerkatError) as busy:
                                await session.turn("too early")
                            assert busy.value.code == "SESSION_BUSY"
                            await session.interrupt()

            with pytest.raises(MeerkatError) as caught:
                await interrupt_when_it_speaks()
            assert (caught.value.code, caught.value.details["cause"]) == ("AGENT_ERROR", "cancelled")
            assert isinstance(events[-1], RunFailed)
            assert events[-1].error_class == "cancelled"
            assert events[-1].error_report is not None
            assert not any(isinstance(event, UnknownEvent) for event in events)
            assert (await session.turn("again")).text == "again"

    on_asyncio(body)


def test_tools_of_the_client(rkat: Rkat) -> None:
    """The model calls a function of the client's program; one that raises is an error result."""

    async def body() -> None:
        calls: list[dict[str, Any]] = [{"tool_calls": [{"name": "lookup", "args": {"q": "x"}}]}, {"text": "done"}]
        model = rkat.script({"text": "its first turn is another model's"}, *calls, *calls)
        async with rkat.client() as client:
            asked: list[dict[str, Any]] = []

            async def lookup(arguments: dict[str, Any]) -> str:
                asked.append(arguments)
                if len(asked) > 1:
                    raise ValueError("not twice")
                nested = await client.list_sessions()
                return f"found among {len(nested)}"

            client.tool("lookup", description="Look it up", input_schema={"type": "object"})(lookup)
            session = await client.create_session("hi")
            events = await collect(session.stream("look", model=model))
            assert [type(event) for event in events[1:7]] == [
                TurnStarted,
                ToolCallRequested,
                ToolExecutionStarted,
                ToolExecutionCompleted,
                ToolResultReceived,
                TurnCompleted,
            ]
            assert isinstance(events[4], ToolExecutionCompleted)
            assert events[4].content == [{"type": "text", "text": "found among 1"}]
            await session.turn("look", model=model)
            assert asked == [{"q": "x"}, {"q": "x"}]
            results = [message.results for message in (await session.history()).messages if message.results]
            assert [(one.content, one.is_error) for (one,) in results] == [
                ("found among 1", False),
                ("Tool error: not twice", True),
            ]

    on_asyncio(body)


def test_event_subscriptions(rkat: Rkat) -> None:
    """A subscription brings the events of turns in envelopes, and ends with its session."""

    async def body() -> None:
        async with rkat.client() as client:
            session = await client.create_session("hi")
            async with await session.subscribe_events() as closed, await session.subscribe_events() as subscription:
                await closed.close()
                await session.turn("one two")
                await session.archive()
                envelopes = [envelope async for envelope in subscription]
            assert kinds([envelope.payload for envelope in envelopes]) == ECHOES
            assert [envelope.seq for envelope in envelopes] == sorted({envelope.seq for envelope in envelopes})
            assert {envelope.source.session_id for envelope in envelopes} == {session.id}
            assert len({envelope.event_id for envelope in envelopes}) == len(envelopes)

    on_asyncio(body)


REFUSED: list[tuple[Callable[[MeerkatClient], Coroutine[Any, Any, Any]], str, str]] = [
    (lambda client: client.create_session("x", enable_shell=True), "INVALID_PARAMS", "$.enable_shell"),
    (lambda client: client.create_session("x", output_schema={"type": "x"}), "INVALID_PARAMS", "$.output_schema.type"),
    (lambda client: client.create_session([{"type": "image"}]), "INVALID_PARAMS", "$.prompt[0]"),
    (lambda client: client.create_session("x", model="nobody-knows"), "INVALID_PARAMS", "$.model"),
    (lambda client: client.create_session("x", budget_limits={"max_duration": -1}), "INVALID_PARAMS", "max_duration"),
    (lambda client: client.create_session("x", enable_memory=True), "SESSION_MEMORY_DISABLED", "memory"),
    (lambda client: client.list_sessions(limit=5000), "INVALID_PARAMS", "$.limit"),
    (lambda client: client.read_session("nobody"), "SESSION_NOT_FOUND", ""),
    (lambda client: client.list_realms(), "METHOD_NOT_FOUND", "realm/list"),
]


def test_errors_have_their_codes(rkat: Rkat) -> None:
    """A refusal has its code and the name of the bad field; the connection lives."""

    async def body() -> None:
        async with rkat.client() as client:
            for call, code, told in REFUSED:
                with pytest.raises(MeerkatError) as caught:
                    await call(client)
                assert (caught.value.code, told in caught.value.message) == (code, True), caught.value.message
            assert (await client.create_session("still here")).text == "still here"

    on_asyncio(body)


def test_sessions_outlive_the_process(rkat: Rkat) -> None:
    """After kill -9 the same realm has the session, under its id; an isolated one does not."""

    async def body() -> None:
        client = MeerkatClient(rkat_path=str(rkat.path))
        await client.connect(realm_id="r", state_root=str(rkat.folder / "stores"))
        session_id = (await client.create_session("first")).id
        assert client._process is not None  # noqa: SLF001 - killed from outside
        client._process.kill()  # noqa: SLF001
        await client._process.wait()  # noqa: SLF001
        client._process = None  # noqa: SLF001 - its `close` would end a process that is gone
        await client.close()
        async with rkat.client() as again:
            assert (await again._start_turn(session_id, "second")).session_id == session_id  # noqa: SLF001
            assert (await again.read_session_history(session_id)).message_count == 4
        async with rkat.client(realm_id=None, isolated=True) as alone:
            assert await alone.list_sessions() == []

    on_asyncio(body)
