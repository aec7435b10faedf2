"""The content of the files: the lines are those of the wire, the rest is what `read` and `list` show."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain import strategies
from tests.storage.files import BYTES, blob
from tests.storage.projection.histories import IDS, World
from warren.base.ids import new_session_id
from warren.conversation import codec
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.events import Envelope, Event
from warren.conversation.log_rows import envelopes, row_of
from warren.conversation.records import SessionRecord
from warren.conversation.views import view_of
from warren.storage.operations import Attach, Commit
from warren.storage.projection.formats import checkpoint_of, is_session_id, mark_of

START = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(START.replace(tzinfo=None), timezones=st.just(UTC))
whole = moments.map(lambda moment: moment.replace(microsecond=0))
told = st.tuples(strategies.of(Event), moments | whole)


@settings(max_examples=25)
@given(st.lists(told, max_size=8), st.integers(1, 5))
def test_the_lines_are_those_of_the_wire(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[Event, datetime]], step: int
) -> None:
    """Each line of events.jsonl is, to the byte, what a subscriber of the stored log is sent."""
    entries = list[Envelope]()
    for number, (event, moment) in enumerate(events, 1):
        entries.append(Envelope(IDS[0], number * step, moment, event))
    rows = tuple(map(row_of, entries))
    world = World.at(tmp_path_factory.mktemp("wire") / "store")
    world.write(Commit(SessionRecord(IDS[0], START, START, "echo"), (), rows))
    files = world.settled()
    world.close()
    expected = [codec.encode(each) + b"\n" for each in envelopes(IDS[0], rows, 0)]
    assert files[f"sessions/{IDS[0]}/events.jsonl"] == b"".join(expected)


def test_session_json_is_what_read_shows(world: World) -> None:
    """It has the state and the billing of a session that nobody has in memory, and a mark that can be read back."""
    world.turn(text="an answer")
    raw = world.settled()[f"sessions/{IDS[0]}/session.json"]
    found = json.loads(raw)
    record = world.record()
    assert {name: found[name] for name in ("state", "billing")} == json.loads(
        codec.encode(view_of(record, live=False, active=False))
    )
    assert (found["state"]["lifecycle"], found["state"]["last_assistant_text"]) == ("stored", "an answer")
    mark = mark_of(raw)
    assert mark is not None
    assert (mark.change, mark.last_seq) == (1, 3)
    assert mark.events_bytes == len(world.path(name="events.jsonl").read_bytes())


def test_the_index_has_a_line_for_each_session_in_the_order_of_creation(world: World) -> None:
    """Deleted ones are left out, archived ones are marked, and odd titles and labels are as they were."""
    odd = 'a "title"\u2028 with \x00 and é'
    world.turn(0, labels={"k\n": "v\"'"}, title=odd)
    for session in range(1, 4):
        world.turn(session)
    world.turn(0)
    world.archive(2)
    world.delete(1)
    lines = [json.loads(line) for line in world.settled()["index.jsonl"].splitlines()]
    assert [line["id"] for line in lines] == [IDS[0], IDS[2], IDS[3]]
    assert [line["archived"] for line in lines] == [False, True, False]
    shown = json.loads(codec.encode(view_of(world.record(), live=False, active=False)))["state"]
    assert lines[0] == {
        "id": IDS[0],
        "title": odd,
        "created_at": shown["created_at"],
        "updated_at": shown["updated_at"],
        "turns": 2,
        "message_count": 4,
        "archived": False,
        "model": "echo",
        "labels": {"k\n": "v\"'"},
    }


def test_the_summary_is_that_of_the_newest_compaction(world: World) -> None:
    """There is no summary.txt before the first one; then it is the newest summary and nothing else."""
    world.turn()
    assert f"sessions/{IDS[0]}/summary.txt" not in world.settled()
    world.compact()
    world.compact()
    assert world.settled()[f"sessions/{IDS[0]}/summary.txt"] == b"summary 2"


def test_only_our_ids_become_folders(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other names in a damaged or foreign file are left out and reported once each, and nothing outside is touched."""
    world.turn(0)
    for name in ("..", "../../x", "", "/etc", f"{IDS[1]}/", IDS[1].upper(), f"{IDS[1]}\n"):
        world.turn(1)
        world.sql("UPDATE sessions SET session_id = ? WHERE session_id = ?", (name, IDS[1]))
        world.turns.pop(IDS[1])
    before = {path for path in tmp_path.rglob("*") if "store/" not in str(path)}
    world.settled()
    world.settled()
    assert [path.name for path in (world.tenant() / "sessions").iterdir() if path.is_dir()] == [IDS[0]]
    assert {path for path in tmp_path.rglob("*") if "store/" not in str(path)} == before
    assert len(world.follower.status().skipped) == len(caplog.messages) == 7
    assert world.follower.status().lag == 0


def test_new_ids_are_ours() -> None:
    """An id that was made here passes the check; other UUIDs, and what looks like one, do not."""
    assert all(is_session_id(new_session_id()) for _ in range(1000))
    near = new_session_id()
    assert not any(map(is_session_id, (near + " ", near[:-1], f"{near[:14]}4{near[15:]}", near.upper(), "\u0661" * 36)))


@given(st.binary() | st.just(b"{}") | st.just(b'{"projection":{"format":3}}'))
def test_damaged_files_say_nothing(raw: bytes) -> None:
    """Whatever bytes stand in session.json or checkpoint.json, reading them gives nothing and raises nothing."""
    assert mark_of(raw) is None
    assert checkpoint_of(raw) is None


def test_a_damaged_row_is_left_out_and_the_rest_goes_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A session whose row cannot be read has no new files; its line and all other sessions are there."""
    world.turn(0)
    world.turn(1)
    world.sql("UPDATE sessions SET details = '{' WHERE session_id = ?", (IDS[0],))
    files = world.settled()
    assert f"sessions/{IDS[1]}/session.json" in files
    assert f"sessions/{IDS[0]}/session.json" not in files
    assert len(files["index.jsonl"].splitlines()) == 2
    assert [IDS[0] in message for message in caplog.messages] == [True]
    assert world.follower.status().lag == 0


def test_files_of_messages_are_beside_their_events(world: World) -> None:
    """By their hashes and types, once; they go with their session, and what is damaged or foreign is put right."""
    text = Blob(Attachment("text/plain", "1" * 64, 5, "b.md"), b"words")
    world.turn(0)
    world.write(Attach(IDS[0], (blob(), text)))
    hashed = blob().attachment.sha256
    folder = f"sessions/{IDS[0]}/files"
    found = world.settled()
    assert found[f"{folder}/{hashed}.png"] == BYTES
    assert found[f"{folder}/{'1' * 64}.txt"] == b"words"
    world.path(0, f"files/{hashed}.png").write_bytes(b"torn")
    world.path(0, "files/other").mkdir()
    world.turn(0)
    assert world.settled().keys() == found.keys()
    assert world.settled() == world.rebuilt()
    world.sql("DELETE FROM attachments WHERE media_type = 'text/plain'")
    world.turn(0)
    assert len([name for name in world.settled() if folder in name]) == 2
    world.delete(0)
    assert folder not in str(world.settled())
