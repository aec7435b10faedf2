"""The floor under the durable store: raw apsw writing the same rows into the same file layout, on one thread.

No JSON, no objects, no threads, no errors to keep apart: the values are ready before the clock starts. Ratios against
it say what the store's own work costs on this machine's disk.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import apsw

from warren import codec
from warren.events import RunCompleted, RunStarted, TextComplete, TextDelta, TurnCompleted, TurnStarted
from warren.ids import new_session_id
from warren.messages import AssistantMessage, TextBlock, UserMessage
from warren.records import EventRow, MessageRow, SessionRecord
from warren.storage import Commit
from warren.usage import Usage

Values = tuple[Any, ...]

SESSION = """
    INSERT INTO sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq,
        generation, labels, details) VALUES (?,?,?,0,?,?,?,?,?,1,'{}',?)
    ON CONFLICT (session_id) DO UPDATE SET updated_at = excluded.updated_at, turns = excluded.turns,
        steps = excluded.steps, message_count = excluded.message_count, last_seq = excluded.last_seq,
        details = excluded.details
    RETURNING key
"""
MESSAGE = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
EVENT = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES (?,?,?,?,?,?)"


def turns_per_second(
    path: Path, groups: Sequence[Sequence[Commit]], *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
) -> float:
    """Write each group in one transaction to a new file at `path` and return turns (commits) per second."""
    ready = [[_values(commit) for commit in group] for group in groups]
    with closing(_create(path, synchronous)) as db:
        begun = time.perf_counter()
        for group in ready:
            _write(db, group)
        return sum(map(len, groups)) / (time.perf_counter() - begun)


def text_turns(sessions: int, turns: int, *, answer: str = "word " * 100) -> list[list[Commit]]:
    """Return `turns` rounds with one commit of each of `sessions` sessions: 2 messages, 6 event rows each."""
    ids = [new_session_id() for _ in range(sessions)]
    return [[_commit(session_id, turn, answer) for session_id in ids] for turn in range(turns)]


def _create(path: Path, synchronous: str) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "WAL")
    db.pragma("synchronous", synchronous)
    db.execute(files("warren.storage").joinpath("schema.sql").read_text(encoding="utf-8"))
    return db


def _write(db: apsw.Connection, group: list[tuple[Values, list[Values], list[Values]]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    for session, messages, events in group:
        key = db.execute(SESSION, session).get
        db.executemany(MESSAGE, [(key, *row) for row in messages])
        db.executemany(EVENT, [(key, *row) for row in events])
    db.execute("COMMIT")


def _values(commit: Commit) -> tuple[Values, list[Values], list[Values]]:
    record = commit.record
    counts = (record.turns, record.steps, record.message_count, record.last_seq)
    details = codec.encode({"usage": record.usage, "last_assistant_text": record.last_assistant_text}).decode()
    session = (record.session_id, _us(record.created_at), _us(record.updated_at), record.model, *counts, details)
    messages = [(row.position, _us(row.created_at), row.body.decode()) for row in commit.messages]
    events = [(row.seq, row.first_seq, _us(row.timestamp), row.body.decode(), _cuts(row)) for row in commit.events]
    return session, messages, events


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def _cuts(row: EventRow) -> str | None:
    return None if row.cuts is None else row.cuts.decode()


def _commit(session_id: str, turn: int, answer: str) -> Commit:
    now = datetime.now(UTC)
    usage = Usage(100 * turn, 100 * turn)
    rows = tuple(_event_rows(session_id, turn, answer, now))
    bodies = [UserMessage("go on, please"), AssistantMessage((TextBlock(answer),))]
    messages = tuple(MessageRow(2 * turn + index, now, codec.encode(message)) for index, message in enumerate(bodies))
    record = SessionRecord(
        session_id,
        now,
        now,
        "echo",
        usage=usage,
        turns=turn + 1,
        steps=turn + 1,
        message_count=2 * turn + 2,
        last_seq=rows[-1].seq,
        last_assistant_text=answer,
    )
    return Commit(record, messages, rows)


def _event_rows(session_id: str, turn: int, answer: str, now: datetime) -> Iterator[EventRow]:
    """Yield the log of one turn; the deltas, one a word, share a row."""
    deltas = answer.count(" ")
    begin = turn * (deltas + 5) + 1
    events = [RunStarted(session_id, "go on, please"), TurnStarted(turn), TextDelta(answer), TextComplete(answer)]
    events += [TurnCompleted("end_turn", Usage(100, 100)), RunCompleted(session_id, answer, Usage(100, 100))]
    for index, event in enumerate(events):
        first = begin + index + (deltas - 1 if index > 2 else 0)
        last = first + deltas - 1 if isinstance(event, TextDelta) else first
        cuts = codec.encode([5] * deltas) if last > first else None
        yield EventRow(first, last, now, codec.encode(event), cuts)
