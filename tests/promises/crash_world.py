"""A gateway that is killed again and again, clients that drive it, and what has to be true after every life."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import psycopg
import trio
from trio_websocket import ConnectionClosed, HandshakeError

from tests.promises.crashing_gateway import POINTS
from tests.support.checks import assert_valid_transcript
from tests.transport.clients import Client, connect
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, UserMessage
from warren.storage.sqlite.file import FILE_NAME

OF_SESSIONS: Final = "SELECT turns, details FROM sessions WHERE state <> 2"
SESSIONS: Final = 4
GONE: Final = (ConnectionClosed, HandshakeError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
SCRIPT: Final = {"steps": [{"chunks": ["to ", "dig ", "is ", "to ", "live"], "chunk_delay": 0.001}], "loop": True}
MARKS: Final = ("run_started", "run_completed", "run_failed")
DELTAS: Final = ("text_delta", "reasoning_delta")
SOON_FREE: Final = {"WARREN_STORAGE_LEASE": "400ms"}
"""The setting by which the sessions of a killed gateway are free in the next life, which takes longer to start."""
Rows = Callable[..., list[Any]]
"""Runs a query with its values on the store's tables, and returns the rows."""


@attrs.define
class Known:
    """The knowledge of the clients about one session.

    Attributes:
        said: prompts whose answers have come.
        state: what was confirmed last; "unsure" while a confirmation is outstanding.
        shown: the events that were seen, by number.
    """

    said: list[str] = attrs.field(factory=list)
    state: str = "open"
    shown: dict[int, dict[str, Any]] = attrs.field(factory=dict)


@attrs.define
class World:
    """One store through many lives of a gateway.

    Attributes:
        folder: of the store and of the script of its model.
        chance: decides what happens.
        database: the address of the store, if it is in a database.
        longest: seconds after which a life is ended.
    """

    folder: Path
    chance: random.Random
    database: str | None = None
    longest: float = 0.4
    sessions: dict[str, Known] = attrs.field(factory=dict)
    lives: int = 0
    acknowledged: int = 0
    killed_at: list[str] = attrs.field(factory=list)

    @property
    def store(self) -> Path:
        """The folder of the sessions."""
        return self.folder / "store"

    async def live(self) -> None:
        """Serve, talk, and be killed at some time or at some point; then look at what is left."""
        self.lives += 1
        point = self.chance.choice(POINTS) if self.chance.random() < 0.7 else None
        environ = {} if point is None else {"WARREN_CRASH": f"{point}:{self.chance.randint(1, 12)}"}
        async with served(self.folder, environ, self.database) as (process, port):
            if port is not None:
                await self._talk(process, port)
            await process.wait()
        self.killed_at += [point] if point is not None and process.returncode == -signal.SIGKILL else []
        self.check()

    async def _talk(self, process: trio.Process, port: int) -> None:
        async with trio.open_nursery() as nursery:
            for session_id in [key for key, known in self.sessions.items() if known.state == "open"][:SESSIONS]:
                nursery.start_soon(self._client, port, session_id)
            for _ in range(SESSIONS - len(nursery.child_tasks)):
                nursery.start_soon(self._client, port, None)
            nursery.start_soon(self._end, process)
            await process.wait()
            nursery.cancel_scope.cancel()

    async def _end(self, process: trio.Process) -> None:
        """End a life that goes on for too long: most times by a kill, else in good order."""
        await trio.sleep(self.chance.uniform(0.05, self.longest))
        process.send_signal(signal.SIGKILL if self.chance.random() < 0.7 else signal.SIGTERM)

    async def _client(self, port: int, session_id: str | None) -> None:
        try:
            async with connect(port) as client:
                try:
                    await self._drive(client, session_id)
                finally:
                    self._note(client)
        except* GONE:
            pass

    async def _drive(self, client: Client, session_id: str | None) -> None:
        if session_id is None:
            session_id = (await _called(client, "session/create", prompt=None))["session_id"]
            self.sessions[session_id] = Known()
        known = self.sessions[session_id]
        while known.state == "open":
            await self._one_thing(client, session_id, known)

    async def _one_thing(self, client: Client, session_id: str, known: Known) -> None:
        lot = self.chance.random()
        if lot < 0.03:
            await self._retire(client, session_id, known)
        elif lot < 0.2:
            await self._interrupted(client, session_id)
        else:
            prompt = f"{self.lives}-{len(known.said)}-{self.chance.random()}"
            await _called(client, "turn/start", session_id=session_id, prompt=prompt)
            known.said.append(prompt)
            self.acknowledged += 1

    async def _retire(self, client: Client, session_id: str, known: Known) -> None:
        how, known.state = self.chance.choice(["archive", "delete"]), "unsure"
        await _called(client, f"session/{how}", session_id=session_id)
        known.state = f"{how}d"

    async def _interrupted(self, client: Client, session_id: str) -> None:
        turn = await client.send("turn/start", session_id=session_id, prompt=f"stop me {self.chance.random()}")
        await trio.sleep(self.chance.uniform(0, 0.01))
        await client.reply(await client.send("turn/interrupt", session_id=session_id))
        await client.reply(turn)

    def _note(self, client: Client) -> None:
        """Keep what a client has seen; a number that was seen twice was the same event."""
        for message in client.seen:
            if message.get("method") == "session/event":
                envelope = message["params"]
                shown = self.sessions[envelope["session_id"]].shown
                if envelope["event"]["type"] not in DELTAS:
                    assert shown.setdefault(envelope["seq"], envelope) == envelope

    # -- what has to be true

    def check(self) -> None:
        """Look into the file, as no Warren does: everything that was confirmed is there, and the rest is whole."""
        if self.database is None and not (self.store / FILE_NAME).exists():
            return
        with in_file(self.store / FILE_NAME) if self.database is None else in_database(self.database) as rows:
            for session_id, known in self.sessions.items():
                self._check_session(rows, session_id, known)
            orphans = "SELECT session FROM {} WHERE session NOT IN (SELECT key FROM sessions WHERE state <> 2)"
            for table in ("messages", "events", "compactions", *(["labels"] if self.database is None else [])):
                assert rows(orphans.format(table)) == [], f"orphans in {table}"
            self._check_ledger(rows)

    def _check_ledger(self, rows: Rows) -> None:
        """The ledger has all that the sessions have used, once; of deleted ones only the ledger knows."""
        stored = [(turns, json.loads(details).get("usage", {})) for turns, details in rows(OF_SESSIONS)]
        names = ("input_tokens", "output_tokens")
        used = [sum(turns for turns, _ in stored), *(sum(usage.get(name, 0) for _, usage in stored) for name in names)]
        booked = list(rows("SELECT coalesce(sum(turns), 0), sum(input_tokens), sum(output_tokens) FROM usage")[0])
        booked = [each or 0 for each in booked]
        if rows("SELECT key FROM sessions WHERE state = 2"):
            assert all(one >= other for one, other in zip(booked, used, strict=True)), (booked, used)
        else:
            assert booked == used

    def _check_session(self, rows: Rows, session_id: str, known: Known) -> None:
        found = rows("SELECT key, state, message_count, last_seq FROM sessions WHERE session_id = ?", session_id)
        assert found, "a session that was told of is gone"
        ((key, state, count, last_seq),) = found
        expected = {"open": (0,), "archived": (1,), "deleted": (2,), "unsure": (0, 1, 2)}[known.state]
        assert state in expected, f"{known.state}, and stored as {state}"
        if known.state == "unsure":
            known.state = ("open", "archived", "deleted")[state]
        if state != 2:
            self._check_messages(_messages(rows, key, count), known)
            self._check_events(_events(rows, key), known, last_seq)

    def _check_messages(self, messages: list[Message], known: Known) -> None:
        assert_valid_transcript(messages)
        asked = [message.content for message in messages if isinstance(message, UserMessage)]
        assert len(set(asked)) == len(asked), "a turn is there twice"
        assert [prompt for prompt in asked if prompt in set(known.said)] == known.said
        for prompt, answer in itertools.pairwise(messages):
            if isinstance(prompt, UserMessage) and prompt.content in set(known.said):
                assert isinstance(answer, AssistantMessage)
                assert answer.text == "to dig is to live"

    def _check_events(self, events: list[tuple[int, int, dict[str, Any]]], known: Known, last_seq: int) -> None:
        assert all(last < first for (_, last, _), (first, _, _) in itertools.pairwise(events)), "numbers do not rise"
        assert not events or events[-1][1] <= last_seq
        for _, seq, event in events:
            if seq in known.shown:
                assert known.shown[seq]["event"] == event, "a number was shown for something else"
        marks = [event["type"] == "run_started" for _, _, event in events if event["type"] in MARKS]
        # The last one may be open, where a compaction stored its beginning: the next life ends it.
        assert all(begins is (index % 2 == 0) for index, begins in enumerate(marks)), "a turn without its one end"


async def _called(client: Client, method: str, **params: Any) -> Any:
    """Return a request's result; a gateway that is about to end has none, and is gone for the client.

    A turn that an earlier life has left open goes on first.
    """
    reply = await client.reply(await client.send(method, **params))
    while reply.get("error", {}).get("data", {}).get("code") == "SESSION_BUSY":
        await client.reply(await client.send("turn/wait", session_id=params["session_id"]))
        reply = await client.reply(await client.send(method, **params))
    if reply.get("error", {}).get("data", {}).get("details", {}).get("cause") == "shutting_down":
        raise trio.ClosedResourceError
    assert "result" in reply, reply
    return reply["result"]


@contextmanager
def in_file(path: Path) -> Iterator[Rows]:
    """Open the file of a store, which has to be sound."""
    with closing(apsw.Connection(str(path))) as db:
        assert db.pragma("integrity_check") == "ok"
        yield lambda sql, *values: db.execute(sql, values).fetchall()


@contextmanager
def in_database(url: str) -> Iterator[Rows]:
    """Open the database of a store."""
    with psycopg.connect(url, options="-c search_path=warren") as db:
        yield lambda sql, *values: db.execute(sql.replace("?", "%s").encode(), values).fetchall()


def _messages(rows: Rows, key: int, count: int) -> list[Message]:
    found = rows("SELECT position, body FROM messages WHERE session = ? ORDER BY 1", key)
    assert [position for position, _ in found] == list(range(count))
    return [codec.decode_message(body.encode()) for _, body in found]


def _events(rows: Rows, key: int) -> list[tuple[int, int, dict[str, Any]]]:
    found = rows("SELECT first_seq, seq, body FROM events WHERE session = ? ORDER BY seq", key)
    return [(first, seq, json.loads(body)) for first, seq, body in found]


@asynccontextmanager
async def served(
    folder: Path, environ: Mapping[str, str], database: str | None = None
) -> AsyncIterator[tuple[trio.Process, int | None]]:
    """Run the gateway in a process of its own; the port is None where it died before it listened."""
    (folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
    command = [sys.executable, "-m", "tests.promises.crashing_gateway", "serve", "--port", "0"]
    command += ["--store", database or str(folder / "store"), "--model", f"scripted:{folder / 'script.json'}"]
    command += ["--compact-threshold", "200", "--compact-keep", "1", "--compact-every", "2"]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **({} if database is None else SOON_FREE), **environ}
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=root, env=env)
    assert process.stdout is not None
    try:
        line = b""
        while not line.endswith(b"\n") and (chunk := await process.stdout.receive_some()):
            line += chunk
        yield process, int(line.rsplit(b":", 1)[1]) if line.endswith(b"\n") else None
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()
            await process.stdout.aclose()
