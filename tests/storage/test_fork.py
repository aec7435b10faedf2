"""The rows that a fork takes over, the places at which it may not be cut, and labels that no turn overwrites."""

import sys
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio

from tests.storage.processes import Process
from tests.storage.samples import NOW, causes, entry, moved, opened, turn, updated, written
from tests.support.faulty_store import HalfDone
from warren.base.errors import InvalidParamsError, LeasedError, SessionNotFoundError
from warren.calls.sessions import ForkRequest
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget, Spent
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
)
from warren.conversation.peers import Peer
from warren.conversation.records import MessageRow, Parent, SessionRecord
from warren.conversation.usage import Usage
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.maintenance.retention import Drop
from warren.storage.operations import Archive, Claim, Claimed, Delete, Fork, Label, Lease, Release
from warren.storage.queries import (
    ANY_TENANT,
    ModelContext,
    SessionList,
    SessionRow,
    StoredEvents,
    StoredHistory,
    StoredMessages,
)
from warren.storage.runner import thread_runner
from warren.storage.sqlite import SqliteStore

LATER = NOW.replace(year=2027)


def fork(at: int | None = None, source: str = "a", new: str = "f", **labels: str) -> Fork:
    """Return the fork of a session."""
    return Fork(new, LATER, ForkRequest(source, at=at, labels=labels))


async def filled(store: SqliteStore, turns: int = 4, head: int = 3) -> None:
    """Store a session of so many turns whose model sees it from `head` on since the third."""
    for number in range(turns):
        commit = turn("a", number, text=f"answer {number}", labels={"team": "red"})
        if number == 2:
            commit = moved(commit, entry(3, head))
        elif number > 2:
            commit = updated(commit, head=head, compactions=1)
        await written(store, commit)


def healthy(path: Path) -> bool:
    """Tell whether the doctor finds nothing wrong in the file."""
    return not [each for each in examine(StoreConfig(path / "store"), full=True).findings if each.level == "problem"]


async def test_a_fork_is_its_original_under_another_id(tmp_path: Path) -> None:
    """Messages and compactions are there byte for byte, events are not, and nothing has been used yet."""
    async with opened(tmp_path) as store:
        await filled(store)
        (made,) = await written(store, fork(team="blue", app="x"))
        assert await store.read(SessionRow("f", ANY_TENANT)) == made
        assert (made.message_count, made.head, made.compactions) == (8, 3, 1)
        assert (made.usage.total_tokens, made.last_seq, made.turns) == (0, 0, 0)
        assert (made.created_at, made.updated_at) == (LATER, LATER)
        assert (made.labels, made.parent) == ({"team": "blue", "app": "x"}, Parent("a", 8))
        assert (await store.read(StoredMessages("f")))[0] == (await store.read(StoredMessages("a")))[0]
        assert await store.read(ModelContext("f", 3, 8)) == await store.read(ModelContext("a", 3, 8))
        assert (await store.read(StoredHistory("f", "default"))).compactions == (
            await store.read(StoredHistory("a", "default"))
        ).compactions
        assert (await store.read(StoredEvents("f"))).rows == []
        assert [record.session_id for record in await store.read(SessionList("default", labels={"team": "blue"}))] == [
            "f"
        ]
    assert healthy(tmp_path)


@pytest.mark.parametrize(("at", "head"), [(0, 0), (2, 0), (3, 3), (5, 3)])
async def test_the_head_is_the_newest_that_the_cut_leaves(tmp_path: Path, at: int, head: int) -> None:
    """The messages before the cut count: a summary of more than is taken over is left behind."""
    async with opened(tmp_path) as store:
        await filled(store)
        (made,) = await written(store, fork(at))
        assert (made.message_count, made.head, made.compactions) == (at, head, int(head > 0))
        assert made.last_compaction_step == (3 if head else None)
        last = [f"answer {number}" for number in range(4)][: at // 2]
        assert made.last_assistant_text == (last[-1] if last else None)
        assert [row.position for row in (await store.read(StoredMessages("f")))[0]] == list(range(at))
    assert healthy(tmp_path)


OWN = {
    *("session_id", "created_at", "updated_at", "spent", "usage", "turns", "message_count", "last_seq", "parent"),
    *("last_assistant_text", "title", "head", "compactions", "last_compaction_step", "last_input_tokens", "labels"),
    *("last_structured_output", "turn_open", "archived", "options"),
}
"""The fields of a record that are each session's own; the rest is settings, and the step counter."""


async def test_settings_are_taken_over(tmp_path: Path) -> None:
    """A fork shares all with its original but its usage and its names."""
    changes = {
        "provider": "p",
        "peer": Peer("rabbit"),
        "max_tokens": 7,
        "tools": ("t",),
        "budget": Budget(max_steps=9),
        "compaction": CompactionConfig(5),
        "spent": Spent(steps=3),
        "usage": Usage(5, 6),
        "title": "hi",
        "last_input_tokens": 5,
        "last_compaction_step": 1,
    }
    async with opened(tmp_path) as store:
        await written(store, updated(turn("a"), **changes))
        original = await store.read(SessionRow("a", ANY_TENANT))
        (whole,) = await written(store, fork(new="w"))
        (cut,) = await written(store, fork(1, new="c"))
    for made in (whole, cut):
        fields = {field.name for field in attrs.fields(SessionRecord)}
        assert {name for name in fields if getattr(made, name) != getattr(original, name)} <= OWN
        assert original is not None
        assert made.options == attrs.evolve(original.options, peer=None)
        assert (made.spent, made.usage, made.title, made.options.peer) == (Spent(), Usage(), "hi", None)
    assert (whole.last_input_tokens, whole.last_compaction_step) == (5, 1)
    assert (cut.last_input_tokens, cut.last_compaction_step) == (0, None)


async def test_which_sessions_can_be_forked(tmp_path: Path) -> None:
    """One that is archived, or held by another process, can; one that was deleted or never was cannot."""
    other = await Process.starting(tmp_path, "the other one")
    await other.do(turn("b"))
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("c"), Archive("a"), Delete("c"))
        assert [type(each) for each in await store.write([fork(source="c"), fork(source="none")])] == [
            SessionNotFoundError
        ] * 2
        for source, new in (("a", "x"), ("b", "y")):
            (made,) = await written(store, fork(source=source, new=new))
            assert (made.message_count, made.archived) == (2, False)
            (claimed,) = await written(store, Claim(new))
            assert isinstance(claimed, Claimed)
    await other.store.aclose()


async def test_no_cut_parts_a_call_from_its_results(tmp_path: Path) -> None:
    """The error names the field and the places next to it, and those work."""
    call = AssistantMessage((TextBlock("let me see"), ToolUseBlock("1", "look")), "tool_use")
    bodies: tuple[Message, ...] = (call, ToolResultsMessage((ToolResult("1", "nothing"),)))
    rows = tuple(MessageRow(2 + n, NOW, codec.encode(body)) for n, body in enumerate(bodies))
    async with opened(tmp_path) as store:
        await written(store, turn("a"), attrs.evolve(turn("a", 1), messages=rows))
        (error,) = await store.write([fork(3)])
        assert isinstance(error, InvalidParamsError)
        assert error.details == {"path": "$.at"}
        assert "the nearest places are 2 and 4" in error.message
        assert await store.read(SessionRow("f", ANY_TENANT)) is None
        for at in (2, 4):
            await written(store, fork(at, new=f"at {at}"))
        (ahead,) = await store.write([fork(5)])
        assert "from 0 to 4" in ahead.message


async def test_what_retention_has_removed_cannot_be_taken_over(tmp_path: Path) -> None:
    """A fork whose model would see a gap is refused; behind the summary that stands for the gap it is whole."""
    async with opened(tmp_path) as store:
        await filled(store, turns=6, head=5)
        await written(store, Drop("a", "messages", 4, 100))
        for at in (2, 3, 4):
            (error,) = await store.write([fork(at)])
            assert isinstance(error, InvalidParamsError), at
            assert "messages before 4 are no longer kept" in error.message
        for at in (0, 1, 5, 12):
            await written(store, fork(at, new=f"at {at}"))
        page = await store.read(StoredHistory("at 5", "default"))
        assert ([row.position for row in page.rows], page.kept_from) == ([0, 4], 4)
    assert healthy(tmp_path)


async def test_a_fork_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Refused after its rows are written, it is gone whole; what was written with it stays."""
    async with opened(tmp_path) as store:
        await filled(store)
        outcomes = await store.write([HalfDone(fork(), apsw.FullError("no space left")), turn("b")])
        assert causes(outcomes) == ["disk_full", "ok"]
        assert await store.read(SessionRow("f", ANY_TENANT)) is None
        assert await store.read(SessionRow("b", ANY_TENANT)) is not None
    assert healthy(tmp_path)


async def long(store: SqliteStore, session_id: str, count: int) -> None:
    """Store a session of so many messages of half a kilobyte."""
    body = codec.encode(AssistantMessage((TextBlock("word " * 100),)))
    commit = updated(turn(session_id), message_count=count)
    await written(store, attrs.evolve(commit, messages=tuple(MessageRow(at, NOW, body) for at in range(count))))


async def calls_in(store: SqliteStore, operation: Fork) -> int:
    """Return how many functions the interpreter calls for a fork."""
    seen = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        outcomes = await store.write([operation])
    finally:
        sys.setprofile(None)
    assert causes(outcomes) == ["ok"]
    return seen


async def test_ten_thousand_messages_are_copied_by_sqlite(tmp_path: Path) -> None:
    """Python has as much to do for a long conversation as for a short one, wherever it is cut."""
    async with opened(tmp_path) as store:
        await long(store, "short", 10)
        await long(store, "long", 10_000)
        await written(store, fork(source="short", new="first"))  # readers of each type are made when it is first read
        whole = [await calls_in(store, fork(source=name, new=f"{name} whole")) for name in ("short", "long")]
        cut = [await calls_in(store, fork(9, source=name, new=f"{name} cut")) for name in ("short", "long")]
        assert whole[1] - whole[0] < 100  # nothing for a message: only its log is long enough to be moved into the file
        assert cut[0] == cut[1]
        assert (await store.read(StoredMessages("long whole", offset=9_990)))[1] == 10_000
        assert len((await store.read(StoredMessages("long whole", offset=9_990)))[0]) == 10


async def test_the_loop_goes_on_while_a_fork_is_made(tmp_path: Path) -> None:
    """Other tasks run while a long conversation is copied."""
    async with opened(tmp_path, runner=thread_runner) as store, trio.open_nursery() as nursery:
        await long(store, "a", 10_000)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        nursery.start_soon(tick)
        await written(store, fork())
        nursery.cancel_scope.cancel()
    assert ticks > 10


async def test_labels_are_changed_one_by_one(tmp_path: Path) -> None:
    """A label that is set is found, one that is None is gone, the rest stays; followers of the store see a change."""
    async with opened(tmp_path) as store:
        await written(store, turn("a", labels={"team": "red", "app": "x"}), turn("b"))
        first, second = await written(store, Label("a", {"team": None, "k": "v"}), Label("a", {"k": "w", "none": None}))
        assert first.record.labels == {"app": "x", "k": "v"}
        assert second.record == await store.read(SessionRow("a", ANY_TENANT))
        assert second.record.labels == {"app": "x", "k": "w"}
        assert first.change < second.change
        assert second.record.updated_at == turn("a").record.updated_at
        assert [record.session_id for record in await store.read(SessionList("default", labels={"k": "w"}))] == ["a"]
        assert await store.read(SessionList("default", labels={"team": "red"})) == []
    assert healthy(tmp_path)


async def test_a_commit_leaves_labels_alone(tmp_path: Path) -> None:
    """A turn that began before they were changed does not bring the old ones back."""
    async with opened(tmp_path) as store:
        await written(store, turn("a", labels={"team": "red"}))
        await written(store, Label("a", {"team": "blue"}), turn("a", 1, labels={"team": "red"}))
        stored = await store.read(SessionRow("a", ANY_TENANT))
        assert stored is not None
        assert (stored.labels, stored.message_count) == ({"team": "blue"}, 4)


async def test_what_cannot_be_labelled(tmp_path: Path) -> None:
    """An archived, deleted or unknown session is not found; one of another process would show the old labels."""
    other = await Process.starting(tmp_path, "the other one")
    await other.do(turn("held"))
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"), Archive("a"), Delete("b"))
        operations = [Label(each, {"k": "v"}) for each in ("a", "b", "none", "held")]
        outcomes = await store.write(operations)
        assert [type(each) for each in outcomes] == [SessionNotFoundError] * 3 + [LeasedError]
        assert causes(outcomes) == ["archived", None, None, "leased"]
        await other.do(Release("held", Lease(1)))
        await written(store, Label("held", {"k": "v"}))
    await other.store.aclose()
