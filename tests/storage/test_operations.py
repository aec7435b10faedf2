"""The changes and the refusals of each operation."""

from pathlib import Path

import attrs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.storage.samples import NOW, causes, opened, turn, updated, written
from warren.base.errors import SessionNotFoundError
from warren.conversation.budget import Budget, Spent
from warren.conversation.options import SessionOptions
from warren.conversation.records import SessionRecord
from warren.conversation.usage import Usage
from warren.storage.operations import Archive, Commit, Delete, Label
from warren.storage.queries import (
    ANY_TENANT,
    ModelContext,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredMessages,
)
from warren.storage.rows import record_to_row, row_to_record

SID = "0190-a"


async def test_a_commit_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Record, messages and events of a turn come back equal, byte for byte."""
    commit = turn(SID, text="grüße, 世界 \N{BEETLE}", labels={"team": "red"})
    async with opened(tmp_path) as store:
        await written(store, commit)
        stored = await store.read(SessionStart(SID))
        assert stored is not None
        assert stored.record == commit.record
        assert (await store.read(ModelContext(SID, 0, 2))).rows == [message.body for message in commit.messages]
        assert stored.seq_floor == commit.record.last_seq
        assert await store.read(StoredMessages(SID)) == (list(commit.messages), 2)
        assert (await store.read(StoredEvents(SID))).rows == list(commit.events)


async def test_a_second_turn_adds_to_the_first(tmp_path: Path) -> None:
    """A commit replaces the record and appends its rows."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, 0))
        await written(store, turn(SID, 1, text="again"))
        stored = await store.read(SessionStart(SID))
        bodies = (await store.read(ModelContext(SID, 0, 4))).rows
    assert stored is not None
    assert stored.record == turn(SID, 1, text="again").record
    rows = turn(SID, 0).messages + turn(SID, 1, text="again").messages
    assert bodies == [row.body for row in rows]


async def test_a_turn_stored_twice_is_refused_whole(tmp_path: Path) -> None:
    """Rows of numbers that are taken are a conflict, and the record stays as it was."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, 0, text="first"))
        outcomes = await store.write([turn(SID, 0, text="second")])
        assert causes(outcomes) == ["conflict"]
        assert outcomes[0].retryable
        assert outcomes[0].session_id == SID
        only_events = attrs.evolve(turn(SID, 1, text="third"), events=turn(SID, 0).events)
        assert causes(await store.write([only_events])) == ["conflict"]
        assert await store.read(SessionRow(SID, ANY_TENANT)) == turn(SID, 0, text="first").record
        assert (await store.read(StoredMessages(SID)))[1] == 2


async def test_creation_time_stays(tmp_path: Path) -> None:
    """A later commit does not move a session's creation."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, 0), updated(turn(SID, 1), created_at=NOW.replace(year=2030)))
        record = await store.read(SessionRow(SID, ANY_TENANT))
    assert record is not None
    assert record.created_at == NOW


async def test_archive_hides_and_keeps(tmp_path: Path) -> None:
    """An archived session is readable, out of the list, and archiving again changes nothing."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID))
        record = attrs.evolve(turn(SID).record, archived=True)
        for _ in range(2):
            await written(store, Archive(SID))
            assert await store.read(SessionRow(SID, ANY_TENANT)) == record
        assert (await store.read(StoredMessages(SID)))[1] == 2
        assert await store.read(SessionList("default")) == []
        assert await store.read(SessionList("default", include_archived=True)) == [record]


async def test_a_late_commit_does_not_unarchive(tmp_path: Path) -> None:
    """A commit that does not know of the archiving is stored; the session stays archived."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, 0), Archive(SID), turn(SID, 1))
        record = await store.read(SessionRow(SID, ANY_TENANT))
    assert record == attrs.evolve(turn(SID, 1).record, archived=True)


async def test_delete_leaves_nothing_but_the_tombstone(tmp_path: Path) -> None:
    """A deleted session cannot be read, listed or brought back; deleting it again is fine."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, labels={"a": "b"}), turn("other", labels={"a": "b"}))
        await written(store, Delete(SID), Delete(SID))
        assert await store.read(SessionStart(SID)) is None
        assert await store.read(SessionRow(SID, ANY_TENANT)) is None
        assert await store.read(StoredMessages(SID)) == ([], 0)
        assert (await store.read(StoredEvents(SID))).rows == []
        assert [
            record.session_id
            for record in await store.read(SessionList("default", labels={"a": "b"}, include_archived=True))
        ] == ["other"]
        for operation in (turn(SID, 1), Archive(SID)):
            (outcome,) = await store.write([operation])
            assert isinstance(outcome, SessionNotFoundError)
            assert outcome.session_id == SID
        assert await store.read(SessionStart(SID)) is None
        assert (await store.read(StoredMessages("other")))[1] == 2


async def test_unknown_sessions_are_not_found(tmp_path: Path) -> None:
    """A session that was never here is None to a reader and SessionNotFoundError to an operation."""
    async with opened(tmp_path) as store:
        outcomes = await store.write([Archive("nobody"), Delete("nobody")])
        assert [type(outcome) for outcome in outcomes] == [SessionNotFoundError] * 2
        assert await store.read(SessionStart("nobody")) is None
        assert await store.read(SessionRow("nobody", ANY_TENANT)) is None


async def test_changed_labels_are_found(tmp_path: Path) -> None:
    """A session with other labels is listed under these and no longer under the old ones."""
    async with opened(tmp_path) as store:
        await written(store, turn(SID, 0, labels={"team": "red", "old": "1"}))
        await written(store, turn(SID, 1), Label(SID, {"team": "blue", "old": None}))
        assert await store.read(SessionList("default", labels={"team": "red"})) == []
        assert await store.read(SessionList("default", labels={"old": "1"})) == []
        assert await store.read(SessionList("default", labels={"team": "blue"})) == [
            turn(SID, 1, labels={"team": "blue"}).record
        ]


async def test_a_commit_without_rows_stores_the_record(tmp_path: Path) -> None:
    """A session can be created before its first turn."""
    commit = Commit(
        SessionRecord(SID, NOW, NOW, "echo", SessionOptions(provider="scripted", tools=("clock",), max_tokens=7))
    )
    async with opened(tmp_path) as store:
        await written(store, commit)
        stored = await store.read(SessionStart(SID))
    assert stored is not None
    assert (stored.record, stored.seq_floor) == (commit.record, 0)


counts = st.integers(0, 2**62)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
records = st.builds(
    SessionRecord,
    session_id=texts,
    created_at=st.datetimes(timezones=st.just(NOW.tzinfo)),
    updated_at=st.datetimes(timezones=st.just(NOW.tzinfo)),
    model=texts,
    options=st.builds(
        SessionOptions,
        provider=st.none() | texts.filter(str.strip),
        max_tokens=st.none() | st.integers(1, 2**62),
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1, exclude_min=True),
        tools=st.none() | st.lists(texts, max_size=3).map(tuple),
        budget=st.none()
        | st.builds(
            Budget, max_tokens=st.none() | st.integers(1, 2**62), max_seconds=st.none() | st.floats(0.001, 1e9)
        ),
    ),
    labels=st.dictionaries(texts, texts, max_size=3),
    spent=st.builds(Spent, tokens=counts, seconds=st.floats(0, 1e9)),
    usage=st.builds(Usage, input_tokens=counts, output_tokens=counts, estimated=st.booleans()),
    turns=counts,
    steps=counts,
    message_count=counts,
    last_seq=counts,
    last_assistant_text=st.none() | texts,
    last_structured_output=st.none() | st.booleans() | st.dictionaries(texts, st.lists(counts, max_size=2), max_size=2),
    archived=st.booleans(),
)


@given(records)
def test_every_record_survives_its_row(record: SessionRecord) -> None:
    """Any record comes back from its row equal, times to the microsecond."""
    assert row_to_record(record_to_row(record)) == record


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example({"nul\0name": "nul\0value", '"': "'"})
@given(st.dictionaries(texts, texts, max_size=4))
async def test_any_label_can_be_listed(tmp_path: Path, labels: dict[str, str]) -> None:
    """Labels of any text (quotes, NUL, other scripts, empty) are found again."""
    async with opened(tmp_path) as store:
        session_id = f"session {len(await store.read(SessionList('default', limit=10_000)))}"
        commit = turn(session_id, labels=labels)
        await written(store, commit)
        assert commit.record in await store.read(SessionList("default", labels=labels, limit=10_000))
        assert await store.read(SessionList("default", labels={**labels, "no": "such"})) == []


def test_a_hosts_own_kind_of_budget_is_stored() -> None:
    """A class of theirs that is derived from one of ours is written as ours."""

    class Own(Budget):
        """A budget."""

    record = turn(SID).record.changed(options=SessionOptions(budget=Own(max_tokens=5)))
    assert row_to_record(record_to_row(record)).options.budget == Budget(max_tokens=5)
