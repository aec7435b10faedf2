"""When a session compacts, what it tells of it, what the model sees afterwards, and what a restart finds."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names, numbers
from tests.support.compacting import (
    ANSWER,
    SUMMARY,
    FakeMemory,
    Model,
    about_compaction,
    assert_fits,
    assert_whole,
    compacting,
    settings,
    summaries,
    talk,
)
from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, replay, transcript
from warren.base.errors import CompactionDisabledError, InvalidParamsError
from warren.compaction import PROMPT, SUMMARY_PREFIX, CompactionConfig, DefaultCompactor, estimate, size_of
from warren.conversation.budget import Budget
from warren.conversation.events import CompactionCompleted, CompactionFailed, CompactionStarted, Envelope, TurnStarted
from warren.conversation.messages import SystemMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time


def reporting(*input_tokens: int) -> Model:
    """Return a model whose provider reports these input tokens, one a call, the last one for ever."""
    figures = list(input_tokens)

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("yes", usage=Usage(figures.pop(0) if len(figures) > 1 else figures[0], 1))

    return Model(answer)


async def test_the_providers_figure_triggers(store: Path | None) -> None:
    """One token below the threshold is not due, at it is, though the estimate is far below."""
    model, recorder = reporting(999, 1000, 5), Recorder()
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 2, on_event=recorder)
        assert about_compaction(recorder.events) == []
        await talk(service, session_id, 1, on_event=recorder)
        started, _ = about_compaction(recorder.events)
        assert isinstance(started, CompactionStarted)
        assert (started.input_tokens, started.message_count) == (1000, 5)
        assert_whole(recorder.envelopes)


async def test_the_estimate_triggers(store: Path | None) -> None:
    """A provider that reports next to nothing is not believed against the bytes of the history."""
    model, recorder = Model(), Recorder()
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 3, on_event=recorder)
        assert about_compaction(recorder.events) == []
        await talk(service, session_id, 2, on_event=recorder)
        started = recorder.only(CompactionStarted)
        history = await transcript(service, session_id)
        assert [each.estimated_history_tokens for each in started] == [estimate(sum(map(size_of, history[:9])))]
        assert started[0].estimated_history_tokens >= 1_000 > estimate(sum(map(size_of, history[:7])))


async def test_the_first_step_never_compacts(store: Path | None) -> None:
    """The first model call of a session sees its prompt whole, however long it is."""
    model, recorder = Model(), Recorder()
    async with compacting(model, store) as service:
        await service.create_session("long " * 10_000, on_event=recorder)
    assert (len(model.asked), about_compaction(recorder.events)) == (1, [])


async def test_attempts_keep_their_distance_in_steps(store: Path | None) -> None:
    """If the context stays too large, an attempt keeps its distance, and the next one waits until it has doubled."""
    model, recorder = reporting(5_000), Recorder()
    async with compacting(model, store, config=settings(min_turns_between_compactions=3)) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 11, on_event=recorder)
        steps = [before.turn_number + 1 for before in _before_compactions(recorder)]
        assert steps == [1, 4, 8]
        assert [event.reason for event in recorder.only(CompactionFailed)] == ["not_smaller"]
        assert len(recorder.only(CompactionCompleted)) == 2
        assert_whole(recorder.envelopes)


def _before_compactions(recorder: Recorder) -> list[TurnStarted]:
    """Return the step that came before each compaction."""
    found, last = [], None
    for event in recorder.events:
        last = event if isinstance(event, TurnStarted) else last
        if isinstance(event, CompactionStarted):
            assert last is not None
            found.append(last)
    return found


async def test_what_is_told_and_in_which_order(store: Path | None) -> None:
    """Started, completed, and then the step: the turn around it looks as ever; no stream shows the summary."""
    model, recorder, followed = Model(), Recorder(), list[Envelope]()
    async with compacting(model, store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def follow() -> None:
            async with service.subscribe(session_id, after_seq=0) as events:
                async for envelope in events:
                    followed.append(envelope)

        nursery.start_soon(follow)
        await talk(service, session_id, 4)
        await talk(service, session_id, 1, on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        assert names(recorder.envelopes) == [
            "run_started",
            "compaction_started",
            "compaction_completed",
            "turn_started",
            "text_delta",
            "text_complete",
            "turn_completed",
            "run_completed",
        ]
        assert recorder.only(CompactionCompleted) == [CompactionCompleted(SUMMARY.output_tokens, 9, 4)]
        assert followed[-len(recorder.envelopes) :] == recorder.envelopes
        for stream in (recorder.envelopes, followed, await replay(service, session_id)):
            assert_whole(stream)
        nursery.cancel_scope.cancel()


async def test_what_the_model_is_asked_for_a_summary(store: Path | None) -> None:
    """The history and the prompt, no tools, a cap on the answer."""
    model = Model()
    async with compacting(model, store, config=settings(max_summary_tokens=77), tools=[look]) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 5)
    (request,) = model.compactions
    assert (request.tools, request.options.max_tokens) == ((), 77)
    assert request.messages[-1] == UserMessage(PROMPT)
    assert request.messages[:-1] == (*model.contexts[3], *request.messages[-3:-1])


async def test_what_the_model_sees_afterwards(store: Path | None) -> None:
    """System message, one summary, the newest exchange, the one in flight; later the rows that follow."""
    model = Model()
    async with compacting(model, store) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 6)
        history = await transcript(service, session_id)
    prefix = (SystemMessage("be brief"), UserMessage(f"{SUMMARY_PREFIX}\n\nSECRET summary"))
    assert model.contexts[4] == (*prefix, *history[7:10])
    assert model.contexts[5] == (*prefix, *history[7:12])


async def test_the_history_is_the_original(store: Path | None) -> None:
    """Every message is still there, page by page; each move of the head is in the page of its position."""
    model = Model()
    async with compacting(model, store) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 14)
        history = await transcript(service, session_id)
        assert [message for message in history if isinstance(message, UserMessage)] == [
            UserMessage(f"question {number}") for number in range(14)
        ]
        assert (len(history), summaries(history)) == (29, [])
        whole = await service.history(session_id, limit=1000)
        assert [entry.position for entry in whole.messages] == list(range(29))
        moved = whole.compactions
        assert len(moved) == (await service.read(session_id)).state.compactions == len(model.compactions) > 2
        assert [entry.head for entry in moved] == sorted({entry.head for entry in moved})
        assert {entry.summary for entry in moved} == {"SECRET summary"}
        for entry in moved:
            assert history[entry.head] == model.contexts[entry.step][2]
            assert len(model.contexts[entry.step]) == entry.messages_after < entry.messages_before
        pages = [await service.history(session_id, offset=offset, limit=5) for offset in range(0, 29, 5)]
        assert tuple(entry for page in pages for entry in page.compactions) == moved
        assert [entry for page in pages for entry in page.messages] == list(whole.messages)


async def test_summaries_are_replaced_and_never_indexed(store: Path | None) -> None:
    """However often it compacts, a context has one summary; the memory gets what the user and the model said, once."""
    model, memory = Model(), FakeMemory()
    async with compacting(model, store, memory=memory) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 20)
        head = (await service.history(session_id, limit=1000)).compactions[-1].head
        history = await transcript(service, session_id)
    assert max(len(summaries(context)) for context in model.contexts) == 1
    assert all(len(summaries(context)) == 1 for context in model.contexts[-5:])
    assert memory.rows == dict(enumerate(history[1:head], 1))


async def test_the_summarys_tokens_are_booked(store: Path | None) -> None:
    """On the turn and on the session, beside those of the answers."""
    model = Model()
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        before = (await service.read(session_id)).billing.usage
        result = await service.start_turn(session_id, "go on")
        assert result.usage == ANSWER + SUMMARY
        assert (await service.read(session_id)).billing.usage == before + ANSWER + SUMMARY
        assert result.steps == 1


async def test_a_restart_finds_the_compacted_context(tmp_path: Path) -> None:
    """The next process sends what this one would have sent, keeps the distance between attempts, and the history."""
    config = settings(min_turns_between_compactions=4)
    model, recorder = Model(), Recorder()
    async with compacting(model, tmp_path, config=config) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 5)
        before, history = await service.read(session_id), await service.history(session_id)
    assert len(model.compactions) == 1
    async with compacting(model, tmp_path, config=settings(1, min_turns_between_compactions=4)) as service:
        assert await service.history(session_id) == history
        stored = await service.read(session_id)
        assert (stored.state.compactions, stored.billing) == (1, before.billing)
        await service.start_turn(session_id, "go on", on_event=recorder)
        grown = [*model.contexts[-2], history.messages[-1].message, UserMessage("go on")]
        assert list(model.contexts[-1]) == grown
        await talk(service, session_id, 2, on_event=recorder)
        assert about_compaction(recorder.events) == []
        await talk(service, session_id, 1, on_event=recorder)
        assert len(model.compactions) == 2
        assert_whole(await replay(service, session_id))


async def test_a_replay_over_a_compaction(tmp_path: Path) -> None:
    """From wherever a reader comes back, there is no gap and nothing twice, in this process and in the next."""
    recorder = Recorder()
    async with compacting(Model(), tmp_path) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 7, on_event=recorder)
        everything = numbers(recorder.envelopes)
        for after in range(0, len(everything) + 1, 3):
            assert numbers(await replay(service, session_id, after)) == everything[after:]
    async with compacting(Model(), tmp_path) as service:
        for after in range(0, len(everything) + 1, 3):
            assert numbers(await replay(service, session_id, after)) == everything[after:]


@tool
async def look(at: int) -> str:
    """Look at a thing."""
    await trio.lowlevel.checkpoint()
    return f"thing {at}: " + "looks fine " * 20


def explorer(steps: int) -> Model:
    """Return a model that looks at things for so many steps, two at a time."""

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        step = len(model.contexts)
        if step > steps:
            return reply("seen it all", usage=ANSWER)
        calls = [ToolUseBlock(f"call-{step}-{n}", "look", {"at": 2 * step + n}) for n in range(2)]
        return reply("", *calls, usage=ANSWER)

    model = Model(answer)
    return model


async def test_one_exchange_is_cut_inside(store: Path | None) -> None:
    """Hundreds of calls in one turn stay within a small window; the request stays known; nothing is lost."""
    model, recorder = explorer(150), Recorder()
    config = settings(None, window=6_000, config=Config(limits=Limits(turn=Budget(max_steps=1_000))))
    async with compacting(model, store, config=config, tools=[look]) as service:
        session_id = await new_session(service, system_prompt="be brief")
        result = await service.start_turn(session_id, "look at everything", on_event=recorder)
        history = await transcript(service, session_id)
    assert (result.text, result.tool_calls) == ("seen it all", 300)
    assert_fits(model.asked, 6_000)
    assert len(model.compactions) > 2
    assert all("look at everything" in repr(context) for context in model.contexts)
    assert_valid_transcript(history)
    assert sum(len(message.results) for message in history if isinstance(message, ToolResultsMessage)) == 300
    assert_whole(recorder.envelopes)


async def test_a_steered_turn_keeps_its_request(store: Path | None) -> None:
    """A turn that is cut inside goes on with its prompt and with all that was added to it."""

    @tool
    async def dig() -> str:
        """Take a while, and bring much."""
        await trio.sleep(1)
        return "hole " * 1_000

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        number = len(model.contexts)
        return reply("done") if number > 8 else reply("", ToolUseBlock(f"c{number}", "dig", {}))

    model = Model(answer)
    async with compacting(model, store, tools=[dig]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "now port it to Rust")
        for word in ("and use tabs", "no"):  # the second is a part of what was said before
            await trio.sleep(2.5)
            ask(nursery, service.start_turn, session_id, word, mode="steer")
    assert len(model.compactions) > 2
    assert summaries(model.contexts[-1])[0].endswith("now port it to Rust\n\nand use tabs\n\nno")


async def test_a_session_has_its_own_way(store: Path | None) -> None:
    """The settings of a session win over the runtime's settings, also after a restart."""
    model = Model()
    own = CompactionConfig(500, recent_turn_budget=0, min_turns_between_compactions=0)
    async with compacting(model, store, config=settings(100_000)) as service:
        session_id = (await service.create_session(None, compaction=own)).session_id
        other = await new_session(service)
        await talk(service, session_id, 3)
        assert len(model.compactions) == 1
        await talk(service, other, 3)
        assert len(model.compactions) == 1
    if store is not None:
        async with compacting(model, store, config=settings(100_000)) as service:
            await talk(service, session_id, 2)
            assert len(model.compactions) == 2


async def test_a_restart_under_another_system_prompt(tmp_path: Path) -> None:
    """A session keeps the one it began with, and with it its summary and its history; new sessions have the new one."""
    model, old = Model(), attrs.evolve(settings(), system_prompt="be brief")
    async with compacting(model, tmp_path, config=old) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 5)
        context, history = [*model.contexts[-1]], await transcript(service, session_id)
    async with compacting(model, tmp_path, config=attrs.evolve(old, system_prompt="be verbose")) as service:
        await talk(service, session_id, 1)
        assert list(model.contexts[-1]) == [*context, history[-1], UserMessage("question 0")]
        assert (await transcript(service, session_id))[: len(history)] == history
        await service.archive(session_id)
        await talk(service, await new_session(service), 1)
        assert model.contexts[-1][0] == SystemMessage("be verbose")


async def test_a_compacted_session_goes_on_without_the_capability(tmp_path: Path) -> None:
    """Its summary still stands for what was before; its own settings rest."""
    model = Model()
    own = CompactionConfig(500, recent_turn_budget=1, min_turns_between_compactions=0)
    async with compacting(model, tmp_path) as service:
        session_id = (await service.create_session(None, compaction=own)).session_id
        await talk(service, session_id, 3)
    assert len(model.compactions) == 1
    async with compacting(model, tmp_path, config=Config()) as service:
        await talk(service, session_id, 5)
        assert len(model.compactions) == 1
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
        assert len(await transcript(service, session_id)) == 16


async def test_the_session_is_readable_while_it_compacts(store: Path | None) -> None:
    """A read in the middle of the summary call answers at once, with the session as it was."""
    gate = trio.Event()

    async def slow(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await gate.wait()
        return reply("SECRET summary", usage=SUMMARY)

    async with compacting(Model(summary=slow), store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        before = await service.read(session_id)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        during = await service.read(session_id)
        assert during.state.is_active
        assert (during.state.message_count, during.billing) == (before.state.message_count, before.billing)
        assert len(await transcript(service, session_id)) == before.state.message_count
        gate.set()
        await turn.value()


@attrs.frozen
class Brief(DefaultCompactor):
    """A host's own compactor, for one session: it asks for the summary in words of its own."""

    def compaction_prompt(self) -> str:
        return f"{PROMPT} BRIEFLY"


async def test_a_compactor_of_one_session(store: Path | None) -> None:
    """It compacts its session and the forks of it, also after they have left memory, and no other session."""
    model = Model()
    config = attrs.evolve(settings(), limits=Limits(idle_after=10))
    async with compacting(model, store, config=config) as service:
        own = (await service.create_session(None, compactor=Brief)).session_id
        fork = (await service.fork(own)).state.session_id
        other = await new_session(service)
        for session_id in (own, fork, other):
            await trio.sleep(20)
            model.asked.clear()
            await talk(service, session_id, 5)
            prompts = [request.messages[-1] for request in model.compactions]
            brief = [isinstance(each, UserMessage) and "BRIEFLY" in each.content for each in prompts]
            assert brief == [session_id != other]


async def test_a_compactor_that_is_none(store: Path | None) -> None:
    """A session is not created with what is no compactor, nor with one where compaction is off."""
    no_compactor: Any = object()
    async with compacting(Model(), store) as service:
        with pytest.raises(InvalidParamsError) as refused:
            await service.create_session(None, compactor=no_compactor)
        assert refused.value.path == "$.compactor"
        assert (await service.list()).sessions == ()
    async with compacting(Model(), store, config=Config()) as service:
        with pytest.raises(CompactionDisabledError):
            await service.create_session(None, compactor=Brief)
