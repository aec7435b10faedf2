"""Forks: where they may begin, what they go on from, and what they leave alone. Labels that change while turns run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_transcript, names, numbers
from tests.support.compacting import Model, about_compaction, at_the_end, compacting, everything, talk
from tests.support.compacting import settings as compacting_at
from tests.support.faulty_store import Faults
from tests.support.models import Emit, GatedModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    LeasedError,
    SessionNotFoundError,
    StoreError,
    WarrenError,
)
from warren.base.fields import MAX_LABEL_BYTES, MAX_LABELS
from warren.compaction import summary_message
from warren.conversation.budget import Budget
from warren.conversation.messages import Message, SystemMessage, ToolUseBlock, UserMessage
from warren.conversation.records import CompactionEntry, Parent
from warren.conversation.views import SessionView
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.storage.operations import Label

pytestmark = pytest.mark.virtual_time


@tool
async def look() -> str:
    """Look around."""
    return "nothing to see " * 20


@attrs.define
class Busy:
    """A model that calls a tool for every word of the prompt but the first, and then answers."""

    number: int = 0
    left: int = 0

    async def __call__(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.number += 1
        last = request.messages[-1]
        self.left = len(last.content.split()) if isinstance(last, UserMessage) else self.left
        self.left -= 1
        if self.left > 0:
            return reply(f"step {self.number}", ToolUseBlock(f"call {self.number}", "look"))
        return reply(f"answer {self.number} " + "word " * 40)


async def turns_of(service: Service, rounds: Sequence[int], **options: object) -> str:
    """Run a session's turns, each with so many rounds of tools; return its id."""
    session_id = await new_session(service, **options)
    for number in rounds:
        await service.start_turn(session_id, "go" + " on" * number)
    return session_id


def seen_by_the_model(history: Sequence[Message], moves: Sequence[CompactionEntry], at: int) -> list[Message]:
    """Return what a model has to see of a conversation that ends at `at`."""
    behind = [move for move in moves if move.head <= at]
    if not behind:
        return list(history[:at])
    first = [history[0]] if isinstance(history[0], SystemMessage) else []
    return [*first, summary_message(behind[-1].summary), *history[behind[-1].head : at]]


def is_valid(messages: Sequence[Message]) -> bool:
    """Tell whether providers take this history."""
    try:
        assert_valid_transcript(messages)
    except AssertionError:
        return False
    return True


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.sampled_from([300, 10_000]),
    st.none() | st.just("be brief"),
    st.sampled_from(["memory", "file"]),
)
async def test_a_fork_goes_on_as_the_beginning_would(
    rounds: list[int], threshold: int, system: str | None, capability: str
) -> None:
    """At every place that providers accept, and at no other: the model sees what is before it, and nothing else."""
    model = Model(Busy())
    with TemporaryDirectory() as folder:
        store = Path(folder) if capability == "file" else None
        async with compacting(model, store, config=compacting_at(threshold), tools=[look]) as service:
            session_id = await turns_of(service, rounds, system_prompt=system)
            history, moves = await everything(service, session_id)
            messages = [entry.message for entry in history]
            for at in range(len(messages) + 1):
                if is_valid(messages[:at]):
                    view = await service.fork(session_id, at=at)
                    assert view.state.parent == Parent(session_id, at)
                    await _goes_on(service, model, view, messages, moves)
                else:
                    with pytest.raises(InvalidParamsError, match=f"the nearest places are {at - 1} and {at + 1}"):
                        await service.fork(session_id, at=at)
            assert await everything(service, session_id) == (history, moves)


async def _goes_on(
    service: Service, model: Model, view: SessionView, messages: list[Message], moves: list[CompactionEntry]
) -> None:
    fork_id, at = view.state.session_id, view.state.message_count
    assert view.billing.total_tokens == 0
    assert await transcript(service, fork_id) == messages[:at]
    before, recorder = len(model.asked), Recorder()
    result = await service.start_turn(fork_id, "and now", on_event=recorder)
    assert result.steps == 2
    if not about_compaction(recorder.events):
        context = seen_by_the_model(messages, moves, at)
        assert list(model.asked[before].messages) == [*context, UserMessage("and now")]
    after = await transcript(service, fork_id)
    assert after[: at + 1] == [*messages[:at], UserMessage("and now")]
    assert_valid_transcript(after)
    assert numbers(recorder.envelopes)[0] == 1
    assert (await service.read(fork_id)).billing.usage == result.usage


async def test_the_finished_part_of_a_session_that_runs(store: Path | None) -> None:
    """A fork does not wait for the turn, knows nothing of it, and the turn knows nothing of the fork."""
    model = GatedModel("later")
    async with (
        open_runtime(says(["first"]), store=store, models={"slow": model}) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = (await service.create_session("hello", labels={"a": "b"})).session_id
        turn = ask(nursery, service.start_turn, session_id, "go on", model="slow")
        await trio.testing.wait_all_tasks_blocked()
        view = await service.fork(session_id)
        assert turn.result is None
        assert (view.state.message_count, view.state.last_assistant_text) == (2, "first")
        assert (view.state.is_active, view.state.labels, view.state.title) == (False, {"a": "b"}, "hello")
        model.gate.set()
        assert (await turn.value()).text == "later"
        assert len(await transcript(service, session_id)) == 4
        assert len(await transcript(service, view.state.session_id)) == 2


async def test_a_turn_that_has_compacted_is_not_finished(store: Path | None) -> None:
    """The messages of the running turn that a compaction stores are not taken over: the fork ends before its prompt.

    A prompt that was steered into the turn is not the first of it.
    """
    gate, entered = trio.Event(), trio.Event()

    model = Model(Busy())
    async with compacting(model, store, config=at_the_end(), tools=[look]) as service, trio.open_nursery() as nursery:
        session_id = await turns_of(service, [0, 2, 1, 2])
        count = (await service.read(session_id)).state.message_count
        before = await transcript(service, session_id)

        busy = Busy(100)

        async def wait_after_a_compaction(request: ModelRequest, emit: Emit) -> ModelReply:
            if not model.compactions and len(model.contexts) == 1:
                ask(nursery, service.start_turn, session_id, "and on", mode="steer")
                await trio.sleep(1)
            if model.compactions:
                entered.set()
                await gate.wait()
            return await busy(request, emit)

        model.answer = wait_after_a_compaction
        model.asked.clear()
        turn = ask(nursery, service.start_turn, session_id, "go" + " on" * 20)
        await entered.wait()
        view = await service.read(session_id)
        assert view.state.message_count > count
        assert UserMessage("and on", steered=True) in await transcript(service, session_id)
        forked = await service.fork(session_id)
        assert forked.state.message_count == count
        assert await transcript(service, forked.state.session_id) == before
        with pytest.raises(InvalidParamsError, match=f"from 0 to {count}"):
            await service.fork(session_id, at=count + 1)
        gate.set()
        await turn.value()


async def test_what_a_fork_inherits(store: Path | None) -> None:
    """Model, limits and the tools of its own; not what was used of the limits."""
    model = Model(Busy())
    async with open_runtime(store=store, models={"own": model}) as service:
        session_id = await new_session(
            service, model="own", tools=[look], budget=Budget(max_steps=3), labels={"a": "1", "b": "2"}
        )
        await service.start_turn(session_id, "go on on")
        view = await service.fork(session_id, labels={"b": "3", "c": "4"})
        assert view.state.labels == {"a": "1", "b": "3", "c": "4"}
        assert view.state.model == "own"
        result = await service.start_turn(view.state.session_id, "go on on")
        assert (result.steps, result.tool_calls) == (3, 2)
        with pytest.raises(WarrenError, match="the steps budget is used up"):
            await service.start_turn(view.state.session_id, "go")
        assert [row.session_id for row in (await service.list(labels={"c": "4"})).sessions] == [view.state.session_id]


async def test_the_log_of_a_fork_is_its_own(store: Path | None) -> None:
    """It is empty at first, begins with the number 1, and has only what the fork did."""
    async with open_runtime(says(["one"], ["two"]), store=store) as service:
        session_id = (await service.create_session("hello")).session_id
        log = await replay(service, session_id)
        fork_id = (await service.fork(session_id)).state.session_id
        assert await replay(service, fork_id) == []
        recorder = Recorder()
        await service.start_turn(fork_id, "go on", on_event=recorder)
        assert numbers(await replay(service, fork_id)) == list(range(1, recorder.envelopes[-1].seq + 1))
        assert names(await replay(service, fork_id))[0] == "run_started"
        assert await replay(service, session_id) == log


async def test_a_fork_of_a_long_session_may_compact_at_once(store: Path | None) -> None:
    """Its step counter goes on: a context that is too large is not sent whole because the session is new."""
    model, recorder = Model(), Recorder()
    async with compacting(model, store, config=compacting_at(min_turns_between_compactions=100)) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6)
        (_, moves) = await everything(service, session_id)
        assert len(moves) == 1
        at = moves[0].head
        early = (await service.fork(session_id, at=at - 1)).state
        assert early.compactions == 0
        await service.start_turn(early.session_id, "word " * 4_000, on_event=recorder)
        assert names(recorder.envelopes)[1:3] == ["compaction_started", "compaction_completed"]


async def test_who_cannot_be_forked(tmp_path: Path) -> None:
    """Unknown ids are not found; what is archived can be forked where it can be read."""
    for store in (None, tmp_path):
        async with open_runtime(says(["one"], ["two"]), store=store) as service:
            session_id = (await service.create_session("hello")).session_id
            await service.archive(session_id)
            with pytest.raises(SessionNotFoundError):
                await service.fork("0198a000-0000-7000-8000-00000000beef")
            if store is None:
                with pytest.raises(SessionNotFoundError):
                    await service.fork(session_id)
            else:
                view = await service.fork(session_id)
                assert (view.state.lifecycle, view.state.message_count) == ("stored", 2)
                assert (await service.start_turn(view.state.session_id, "go on")).text == "two"
                assert (await service.read(session_id)).state.lifecycle == "archived"


@pytest.mark.parametrize(
    ("at", "problem"), [(-1, "0 or above"), (3, "from 0 to 2"), ("1", "integer"), (True, "integer")]
)
async def test_bad_places(store: Path | None, at: object, problem: str) -> None:
    """The error names the field, and nothing is made."""
    async with open_runtime(says(["one"]), store=store) as service:
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(InvalidParamsError, match=problem) as caught:
            await service.fork(session_id, at=at)  # type: ignore[arg-type]
        assert caught.value.path == "$.at"
        assert len((await service.list()).sessions) == 1


async def test_a_crash_of_the_store_around_a_fork(tmp_path: Path) -> None:
    """After the commit the fork is there, and its caller is told so; before it there is none, and that is told."""
    faults = Faults()
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, faults=faults) as service:
        session_id = (await service.create_session("hello")).session_id
        faults.crash_before = 1
        with pytest.raises(StoreError) as caught:
            await service.fork(session_id)
        assert (caught.value.cause, caught.value.session_id) == ("crash", session_id)
        assert len((await service.list()).sessions) == 1
        faults.crash_after = 1
        view = await service.fork(session_id)
        assert len((await service.list()).sessions) == 2
        assert (await service.start_turn(view.state.session_id, "go on")).text == "two"


async def test_a_fork_outlives_its_original_and_the_process(tmp_path: Path) -> None:
    """Deleting the original takes nothing from it; after a restart it goes on and still names it."""
    async with open_runtime(says(["one"]), store=tmp_path) as service:
        session_id = (await service.create_session("hello")).session_id
        fork_id = (await service.fork(session_id)).state.session_id
        await service.delete(session_id)
    async with open_runtime(says(["two"]), store=tmp_path) as service:
        assert (await service.start_turn(fork_id, "go on")).text == "two"
        view = await service.read(fork_id)
        assert (view.state.parent, view.state.message_count) == (Parent(session_id, 2), 4)


# -- labels


async def test_labels_change_while_a_turn_runs(store: Path | None) -> None:
    """They are shown at once, the turn goes on, and its commit keeps them."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service, labels={"a": "1", "b": "2"})
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        view = await service.label(session_id, {"a": None, "c": "3"})
        assert (view.state.labels, view.state.is_active) == ({"b": "2", "c": "3"}, True)
        assert (await service.read(session_id)).state.labels == {"b": "2", "c": "3"}
        assert [row.labels for row in (await service.list(labels={"c": "3"})).sessions] == [{"b": "2", "c": "3"}]
        model.gate.set()
        await turn.value()
        assert (await service.read(session_id)).state.labels == {"b": "2", "c": "3"}
        assert (await service.read(session_id)).state.message_count == 2


@pytest.mark.parametrize("first", ["label", "commit"])
async def test_labels_and_a_commit_at_the_same_time(tmp_path: Path, first: str) -> None:
    """Whichever the store takes first, both are there, in memory and in the file."""
    model, faults = GatedModel(), Faults()
    async with open_runtime(model, store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        faults.gate = trio.Event()
        labels: list[Asked[SessionView]] = []
        steps: list[Callable[[], object]] = [
            model.gate.set,
            lambda: labels.append(ask(nursery, service.label, session_id, {"a": "1"})),
        ]
        for step in reversed(steps) if first == "label" else steps:
            step()
            await trio.testing.wait_all_tasks_blocked()
        faults.gate.set()
        await turn.value()
        view = await labels[0].value()
        assert view.state.labels == {"a": "1"}
        state = (await service.read(session_id)).state
        assert (state.labels, state.message_count) == ({"a": "1"}, 2)
    async with open_runtime(model, store=tmp_path) as service:
        state = (await service.read(session_id)).state
        assert (state.labels, state.message_count) == ({"a": "1"}, 2)


async def test_many_at_once_change_labels(store: Path | None) -> None:
    """None of them is lost, and what is shown is what is stored."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "go")
            asked = [ask(nursery, service.label, session_id, {f"k{n}": "v", "last": str(n)}) for n in range(20)]
            model.gate.set()
        assert turn.error is None
        assert [each.error for each in asked] == [None] * 20
        shown = (await service.read(session_id)).state.labels
        assert shown.keys() == {f"k{n}" for n in range(20)} | {"last"}
        assert [row.session_id for row in (await service.list(labels=shown)).sessions] == [session_id]
    if store is not None:
        async with open_runtime(model, store=store) as service:
            assert (await service.read(session_id)).state.labels == shown


async def test_labels_of_sessions_that_are_not_live(tmp_path: Path) -> None:
    """A stored session takes them without coming to life; one that runs a turn in another process does not."""
    async with open_runtime(model := GatedModel(), store=tmp_path) as first, trio.open_nursery() as nursery:
        session_id = await new_session(first)
        turn = ask(nursery, first.start_turn, session_id, "hello")
        await trio.testing.wait_all_tasks_blocked()
        async with open_runtime(says(), store=tmp_path) as second:
            with pytest.raises(LeasedError):
                await second.label(session_id, {"a": "1"})
            model.gate.set()
            await turn.value()
            assert (await second.fork(session_id)).state.message_count == 2
    async with open_runtime(says(), store=tmp_path) as service:
        assert (await service.label(session_id, {"a": "1"})).state.labels == {"a": "1"}
        assert service.health().live_sessions == 0
        await service.archive(session_id)
        with pytest.raises(SessionNotFoundError) as caught:
            await service.label(session_id, {"a": "2"})
        assert caught.value.cause == "archived"


@pytest.mark.parametrize(("labels", "path"), [({"a": 1}, "$.labels.a"), ({1: "a"}, "$.labels"), (["a"], "$.labels")])
async def test_bad_labels(store: Path | None, labels: object, path: str) -> None:
    """The error names the label, and the others are not set either."""
    async with open_runtime(says(), store=store) as service:
        session_id = await new_session(service, labels={"a": "b"})
        with pytest.raises(InvalidParamsError) as caught:
            await service.label(session_id, labels)  # type: ignore[arg-type]
        assert caught.value.path == path
        assert (await service.read(session_id)).state.labels == {"a": "b"}


async def test_too_many_labels_in_all(store: Path | None) -> None:
    """Labels that are added one by one are counted with those that are there; removing some makes room."""
    async with open_runtime(store=store) as service:
        session_id = await new_session(service, labels={f"l{number}": "x" for number in range(MAX_LABELS)})
        for add in (service.label, service.fork):
            with pytest.raises(InvalidParamsError, match="at most 64 labels") as caught:
                await add(session_id, labels={"more": "x"})
            assert caught.value.path == "$.labels"
        await service.fork(session_id)
        await service.label(session_id, {"l0": None, "more": "x"})
        with pytest.raises(InvalidParamsError, match="at most 16384 bytes"):
            await service.label(session_id, {"more": "x" * MAX_LABEL_BYTES})
        labels = (await service.read(session_id)).state.labels
        assert (len(labels), labels["more"]) == (MAX_LABELS, "x")


async def test_labels_that_the_store_refuses(tmp_path: Path) -> None:
    """Neither the file nor the live session shows them."""
    faults = Faults(refuse_kinds=(Label,))
    async with open_runtime(says(), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.refuse = apsw.FullError("no space left")
        with pytest.raises(StoreError):
            await service.label(session_id, {"a": "1"})
        faults.refuse = None
        assert (await service.read(session_id)).state.labels == {}
        assert (await service.label(session_id, {"b": "2"})).state.labels == {"b": "2"}


async def test_the_runtime_ends(store: Path | None) -> None:
    """Afterwards neither is done."""
    async with open_runtime(says(), store=store) as service:
        session_id = await new_session(service)
    for call in (service.fork(session_id), service.label(session_id, {"a": "b"})):
        with pytest.raises(AgentError) as caught:
            await call
        assert caught.value.cause == "shutting_down"
