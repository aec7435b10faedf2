"""Any sequence of groups leaves the store as a plain dict would be left."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.samples import NOW, opened, turn, updated
from warren.base.errors import SessionNotFoundError, StoreError, WarrenError
from warren.conversation.log_rows import row_of
from warren.conversation.records import EventRow, MessageRow, SessionRecord
from warren.storage.operations import Archive, Commit, Delete, Label, Operation
from warren.storage.queries import ModelContext, SessionList, SessionStart, StoredEvents, StoredMessages
from warren.storage.sqlite import Holder, SqliteStore

SESSIONS = ("a", "b", "c")
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "red"}, {"team": "blue", "app": "x"})


@attrs.define
class _Session:
    record: SessionRecord
    messages: dict[int, MessageRow]
    events: dict[int, EventRow]


@attrs.define
class _Model:
    """The store as a dict; None is a tombstone."""

    sessions: dict[str, _Session | None] = attrs.field(factory=dict)

    def apply(self, operation: Operation[object]) -> str:
        """Make the change or refuse it; return what it comes to."""
        known = operation.session_id in self.sessions
        if isinstance(operation, Delete):
            self.sessions |= {operation.session_id: None} if known else {}
            return "ok" if known else "not found"
        session = self.sessions.get(operation.session_id)
        if isinstance(operation, Commit):
            return "not found" if known and session is None else self._commit(operation, session)
        if session is None:
            return "not found"
        if isinstance(operation, Label):
            return self._label(operation, session)
        session.record = attrs.evolve(session.record, archived=True)
        return "ok"

    def _label(self, label: Label, session: _Session) -> str:
        if session.record.archived:
            return "not found"
        found = {**session.record.labels, **label.changes}
        labels = {name: value for name, value in found.items() if value is not None}
        session.record = attrs.evolve(session.record, labels=labels)
        return "ok"

    def _commit(self, commit: Commit, session: _Session | None) -> str:
        old = session or _Session(commit.record, {}, {})
        messages = {row.position: row for row in commit.messages}
        events = {row.seq: row_of(row) for row in commit.events}
        if messages.keys() & old.messages.keys() or events.keys() & old.events.keys():
            return "conflict"
        archived = old.record.archived or commit.record.archived
        created_at, labels = old.record.created_at, old.record.labels
        record = attrs.evolve(commit.record, archived=archived, created_at=created_at, labels=labels)
        self.sessions[commit.session_id] = _Session(record, old.messages | messages, old.events | events)
        return "ok"

    def listing(self, labels: Mapping[str, str], *, archived: bool) -> list[SessionRecord]:
        records = [session.record for session in self.sessions.values() if session is not None]
        found = [r for r in records if labels.items() <= r.labels.items() and (archived or not r.archived)]
        return sorted(found, key=lambda record: (-record.updated_at.timestamp(), record.session_id))


def _commits() -> st.SearchStrategy[Commit]:
    """Commits of turns 0 to 3 of a session, in any order, so that some collide; times and labels vary."""
    return st.builds(
        lambda session_id, number, labels, minute, archived: updated(
            turn(session_id, number, labels=labels), updated_at=NOW + timedelta(minutes=minute), archived=archived
        ),
        st.sampled_from(SESSIONS),
        st.integers(0, 3),
        st.sampled_from(LABELS),
        st.integers(0, 3),
        st.sampled_from((False, False, False, True)),
    )


CHANGES: tuple[dict[str, str | None], ...] = ({}, {"team": "red", "app": None}, {"team": None, "app": "x"})
operations = st.one_of(
    _commits(),
    _commits(),
    st.builds(Label, st.sampled_from(SESSIONS), st.sampled_from(CHANGES)),
    st.builds(Archive, st.sampled_from(SESSIONS)),
    st.builds(Delete, st.sampled_from(SESSIONS)),
)


@given(st.lists(st.lists(operations, max_size=6) | st.none(), max_size=8))
async def test_any_sequence_of_groups(groups: list[list[Operation[object]] | None]) -> None:
    """Outcomes and contents are those of the model; None closes the file and opens it again."""
    model = _Model()
    with TemporaryDirectory() as folder:
        holder = Holder(Path(folder) / "store" / "holders", "the one process", 1000.0)
        for era in _eras(groups):
            async with opened(Path(folder), holder=holder) as store:
                for group in era:
                    outcomes = [_called(outcome) for outcome in await store.write(group)]
                    assert outcomes == [model.apply(operation) for operation in group]
                    await _compare(store, model)
        holder.die()


def _eras(groups: list[list[Operation[object]] | None]) -> list[list[list[Operation[object]]]]:
    eras: list[list[list[Operation[object]]]] = [[]]
    for group in groups:
        if group is None:
            eras.append([])
        else:
            eras[-1].append(group)
    return eras


def _called(outcome: object) -> str:
    if isinstance(outcome, SessionNotFoundError):
        return "not found"
    if isinstance(outcome, StoreError):
        return str(outcome.cause)
    return "error" if isinstance(outcome, WarrenError) else "ok"


async def _compare(store: SqliteStore, model: _Model) -> None:
    for session_id in SESSIONS:
        session = model.sessions.get(session_id)
        stored = await store.read(SessionStart(session_id))
        if session is None:
            assert stored is None
            continue
        messages = [row for _, row in sorted(session.messages.items())]
        assert stored is not None
        assert stored.record == session.record
        if [row.position for row in messages] == list(range(len(messages))):
            assert (await store.read(ModelContext(session_id, 0, len(messages)))).rows == [row.body for row in messages]
        assert (await store.read(StoredMessages(session_id)))[0] == messages
        assert (await store.read(StoredEvents(session_id))).rows == [row for _, row in sorted(session.events.items())]
    for labels in LABELS:
        for archived in (False, True):
            listed = await store.read(SessionList("default", labels=labels, include_archived=archived))
            assert listed == model.listing(labels, archived=archived)
