"""Forks with SQL. The server copies the rows; Python reads only the rows that decide whether the cut is allowed."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Any, Final

from warren.base.values import frozen
from warren.calls.forking import forked
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, newest_answer
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.storage.operations import Fork
from warren.storage.postgres import attachments, audit
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, array, escaped
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import compaction_of, record_of
from warren.storage.refusals import not_found
from warren.storage.rows import COLUMNS, COMPACTION, DELETED, agent_of, corrupt, record_to_row

# The lock keeps the session from being deleted while its rows are copied; turns of it are stored all the same.
_SOURCE: Final = f"""
    SELECT {COLUMNS}, key, messages_from FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} FOR KEY SHARE
"""
_PLACES: Final = ", ".join(f"${number}" for number in range(1, len(COLUMNS.split(",")) + 1))
# Without a holder: the first turn claims the lease.
_ADD: Final = f"""
    INSERT INTO warren.sessions ({COLUMNS}, marks, messages_from, agent)
    VALUES ({_PLACES}, $18::text[], $19::int8, $20)
    RETURNING key
"""
_COPY_MESSAGES: Final = """
    INSERT INTO warren.messages (session, position, created_at, body)
    SELECT $1::int8, position, created_at, body FROM warren.messages
    WHERE session = $2::int8 AND position < $3::int8 ORDER BY position
"""
_COPY_COMPACTIONS: Final = f"""
    INSERT INTO warren.compactions (session, {COMPACTION})
    SELECT $1::int8, {COMPACTION} FROM warren.compactions
    WHERE session = $2::int8 AND head <= $3::int8 AND key <= $4::int8 ORDER BY key
"""
_MESSAGES: Final = """
    SELECT position, body FROM warren.messages WHERE session = $1::int8 AND position IN (0, $2::int8)
"""
_PROMPT: Final = """
    SELECT position FROM warren.messages WHERE session = $1::int8 AND starts_with(body, '{"role":"user"')
        AND strpos(body, '"steered":true') = 0
    ORDER BY position DESC LIMIT 1
"""
_ANSWERS: Final = """
    SELECT position, body FROM warren.messages WHERE session = $1::int8 AND position < $2::int8
        AND starts_with(body, '{"role":"assistant"') AND strpos(body, '"type":"text"') > 0
    ORDER BY position DESC LIMIT 8
"""
_MOVES: Final = """
    SELECT count(*) FROM warren.compactions WHERE session = $1::int8 AND head <= $2::int8 AND key <= $3::int8
"""
# Those that follow it, of a turn that ends meanwhile, are left out.
_MOVE: Final = f"""
    SELECT key, {COMPACTION} FROM warren.compactions
    WHERE session = $1::int8 AND head <= $2::int8 ORDER BY key DESC LIMIT 1
"""


async def fork(operation: Fork, db: Connection, _holder: Holder) -> SessionRecord:
    """Copy the rows of a session. The original does not change, so its lease does not matter."""
    source_id = operation.wanted.session_id
    rows = await db.fetch(_SOURCE, escaped(source_id))
    if not rows:
        raise not_found(source_id)
    *columns, session, kept_from = rows[0]
    original = await _read(db, session, record_of(tuple(columns)), kept_from, operation.wanted.at)
    wanted, owner = operation.wanted, operation.owner
    record = forked(original, wanted, operation.session_id, operation.now, owner=owner, spoken=operation.spoken)
    count = record.message_count
    values = [escaped(each) if isinstance(each, str) else each for each in record_to_row(record)]
    new = await db.value(_ADD, *values, array(marks_of(record.labels)), min(kept_from, count), agent_of(record))
    await db.fetch(_COPY_MESSAGES, new, session, count)
    await attachments.share(db, session, new)
    if original.newest_move is not None:
        await db.fetch(_COPY_COMPACTIONS, new, session, count, original.newest_move)
    await audit.add(db, (operation.audit,))
    return record


@frozen
class _Stored:
    """The facts about an original that a fork at one place depends on; see `warren.calls.forking.Original`."""

    record: SessionRecord
    kept_from: int
    _messages: dict[int, Message]
    _prompt: int
    _answer: AssistantMessage | None
    _moves: tuple[int, CompactionEntry | None]
    newest_move: int | None

    def message(self, position: int) -> Message | None:
        return self._messages.get(position)

    def newest_prompt(self) -> int:
        return self._prompt

    def last_answer(self, before: int) -> AssistantMessage | None:  # noqa: ARG002 - it was read for this place
        return self._answer

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:  # noqa: ARG002 - as above
        return self._moves


async def _read(db: Connection, session: int, record: SessionRecord, kept_from: int, at: int | None) -> _Stored:
    """Read the facts that the fork depends on; `at` is the wanted place, None the end of the last finished turn."""
    if record.turn is not None:
        prompt = record.turn.prompt_at
    else:
        prompt = await db.value(_PROMPT, session) or 0 if record.turn_open else 0
    place = at if at is not None else prompt if record.turn_open else record.message_count
    bodies = await db.fetch(_MESSAGES, session, place - 1)
    messages = {position: _decoded(body, record) for position, body in bodies}
    answer = (
        None
        if place == record.message_count and not record.turn_open
        else await _last_answer(db, session, record, place)
    )
    newest = await db.fetch(_MOVE, session, place)
    if not newest:
        return _Stored(record, kept_from, messages, prompt, answer, (0, None), None)
    key, *columns = newest[0]
    count = await db.value(_MOVES, session, place, key)
    return _Stored(record, kept_from, messages, prompt, answer, (count, _entry(tuple(columns), record)), key)


async def _last_answer(db: Connection, session: int, record: SessionRecord, before: int) -> AssistantMessage | None:
    while answers := await db.fetch(_ANSWERS, session, before):
        if (found := newest_answer(_decoded(body, record) for _, body in answers)) is not None:
            return found
        before = answers[-1][0]
    return None


def _entry(row: tuple[Any, ...], record: SessionRecord) -> CompactionEntry:
    try:
        return compaction_of(row)
    except ValueError as exc:
        raise corrupt("a compaction", exc, record.session_id) from exc


def _decoded(body: str, record: SessionRecord) -> Message:
    try:
        return codec.decode_message(body.encode())
    except ValueError as exc:
        raise corrupt("a message", exc, record.session_id) from exc
