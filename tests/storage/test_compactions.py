"""How a head that moved is stored: with its turn's rows or not at all, and what is read from it on."""

from pathlib import Path

import apsw
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.samples import NOW, causes, entry, moved, opened, turn, written
from warren.compaction import CompactionConfig
from warren.conversation.options import SessionOptions
from warren.conversation.records import SessionRecord
from warren.storage.operations import Delete
from warren.storage.queries import ANY_TENANT, ModelContext, SessionRow, StoredHistory, StoredMessages
from warren.storage.rows import record_to_row, row_to_record
from warren.storage.sqlite import Holder, SqliteStore, queries
from warren.storage.sqlite.file import FILE_NAME

SID = "0190-a"


async def filled(store: SqliteStore, turns: int, session_id: str = SID) -> None:
    """Store so many turns of two messages."""
    await written(store, *(turn(session_id, number, text=f"answer {number}") for number in range(turns)))


async def test_a_moved_head_is_read_back(tmp_path: Path) -> None:
    """The context is the first message, the entry, the rows from the head on; the record says how often and when."""
    commit = moved(turn(SID, 3), entry(3, 5, "grüße, 世界"), last_input_tokens=0, turn_open=True)
    async with opened(tmp_path) as store:
        await filled(store, 3)
        await written(store, commit)
        record = await store.read(SessionRow(SID, ANY_TENANT))
        rows, total = await store.read(StoredMessages(SID))
        context = await store.read(ModelContext(SID, 5, 8))
    assert record == commit.record
    assert (total, [row.position for row in rows]) == (8, list(range(8)))
    assert (context.first, context.compaction) == (rows[0].body, commit.compaction)
    assert context.rows == [row.body for row in rows[5:]]


async def test_a_context_that_was_never_compacted(tmp_path: Path) -> None:
    """All rows and nothing before them."""
    async with opened(tmp_path) as store:
        await filled(store, 2)
        context = await store.read(ModelContext(SID, 0, 4))
    assert (context.first, context.compaction, len(context.rows)) == (None, None, 4)


async def test_a_refused_commit_moves_nothing(tmp_path: Path) -> None:
    """A conflict in one of its rows takes the new head back with the rest."""
    async with opened(tmp_path) as store:
        await filled(store, 3)
        conflict = moved(turn(SID, 2), entry(2, 3))
        assert causes(await store.write([conflict])) == ["conflict"]
        assert (await store.read(StoredHistory(SID, "default", offset=0, limit=100))).compactions == []
        record = await store.read(SessionRow(SID, ANY_TENANT))
    assert record is not None
    assert (record.head, record.compactions) == (0, 0)


async def test_the_newest_one_counts(tmp_path: Path) -> None:
    """Of several, also before one and the same step, the last that was stored is what the model sees."""
    steps = [entry(3, 3, "first"), entry(3, 5, "second"), entry(3, 5, "third")]
    async with opened(tmp_path) as store:
        await filled(store, 3)
        for number, each in enumerate(steps, 3):
            await written(store, moved(turn(SID, number), each))
            assert (await store.read(ModelContext(SID, each.head, 2 * number + 2))).compaction == each
        assert (await store.read(StoredHistory(SID, "default", offset=0, limit=100))).compactions == steps


async def test_they_are_paged_by_the_position_of_their_head(tmp_path: Path) -> None:
    """Pages that meet have each of them once; another session's are not among them."""
    entries = [entry(number, 2 * number - 1) for number in range(1, 9)]
    async with opened(tmp_path) as store:
        for number, each in enumerate(entries):
            await written(store, moved(turn(SID, number), each), moved(turn("other", number), each))
        pages = [
            (await store.read(StoredHistory(SID, "default", offset=offset, limit=5))).compactions
            for offset in range(0, 20, 5)
        ]
        assert [each for page in pages for each in page] == entries
        assert [len(page) for page in pages] == [3, 2, 3, 0]
        assert (await store.read(StoredHistory("nobody", "default", offset=0, limit=5))).compactions == []


async def test_a_deleted_session_has_none(tmp_path: Path) -> None:
    """They go with the session, and no other one's."""
    async with opened(tmp_path) as store:
        await written(store, moved(turn(SID), entry(1, 1)), moved(turn("other"), entry(1, 1)))
        await written(store, Delete(SID))
        assert (await store.read(StoredHistory(SID, "default", offset=0, limit=5))).compactions == []
        assert len((await store.read(StoredHistory("other", "default", offset=0, limit=5))).compactions) == 1
        reader = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
        assert reader.execute("SELECT count(*) FROM compactions").get == 1
        reader.close()


async def test_a_context_costs_its_rows(tmp_path: Path) -> None:
    """Reading what the model sees takes SQLite the same steps behind 10 turns and behind 300."""
    steps = []
    for turns in (10, 300):
        async with opened(tmp_path / str(turns)) as store:
            await filled(store, turns)
            for number in range(turns, turns + 3):
                await written(store, moved(turn(SID, number), entry(number, 2 * number - 2)))
            reader = apsw.Connection(str(tmp_path / str(turns) / "store" / FILE_NAME))
            steps.append(_steps_of_a_context(reader, 2 * turns + 2, 2 * turns + 6))
            reader.close()
    assert steps[1] <= 1.05 * steps[0]


def _steps_of_a_context(db: apsw.Connection, head: int, count: int) -> int:
    steps = 0

    def tick() -> bool:
        nonlocal steps
        steps += 1
        return False

    db.set_progress_handler(tick, 1)
    found = queries.answer(db, Holder(Path(), "me", 15.0), ModelContext(SID, head, count))
    assert (found.compaction, len(found.rows)) == (entry(count // 2 - 1, head), count - head)
    return steps


counts = st.integers(0, 2**62)
ways = st.builds(
    CompactionConfig,
    auto_compact_threshold=st.none() | st.integers(1, 2**62),
    recent_turn_budget=counts,
    max_summary_tokens=st.integers(1, 2**62),
    min_turns_between_compactions=counts,
    window=st.none() | st.integers(1, 2**62),
)
records = st.builds(
    SessionRecord,
    session_id=st.just(SID),
    created_at=st.just(NOW),
    updated_at=st.just(NOW),
    model=st.just("echo"),
    head=counts,
    options=st.builds(SessionOptions, compaction=st.none() | ways),
    compactions=counts,
    last_compaction_step=st.none() | counts,
    last_input_tokens=counts,
    turn_open=st.booleans(),
)


@given(records)
def test_every_record_survives_its_row(record: SessionRecord) -> None:
    """Head, marks and settings come back from their row equal."""
    assert row_to_record(record_to_row(record)) == record
