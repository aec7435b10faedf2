"""A model whose server counts tokens in its own way and refuses what is over its window: no session ends by that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.compacting import assert_whole_compactions, compacting, settings, summaries, wants_summary
from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, supervisor_of
from warren.actors.turn.model_call import sent_size
from warren.actors.turn.room import REMEMBERED
from warren.base.errors import CompactionDisabledError, ProviderCause, ProviderError
from warren.calls.facade import SessionService
from warren.conversation.attachments import File
from warren.conversation.events import CompactionCompleted, CompactionFailed, RequestRepaired, Retrying
from warren.conversation.messages import AssistantMessage, ReasoningBlock, TextBlock, ToolUseBlock
from warren.conversation.options import CompactionConfig
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
WINDOW = 3_000
PROMPT = "some words of a question " * 30
Details = Callable[[int], dict[str, Any]]
TOLD: dict[str, tuple[ProviderCause, Details]] = {
    "window and count": ("context_length", lambda count: {"window": WINDOW, "counted": count}),
    "window": ("context_length", lambda _: {"window": WINDOW}),
    "count": ("context_length", lambda count: {"counted": count}),
    "nothing": ("context_length", lambda _: {}),
    "413": ("too_large", lambda _: {}),
}
told = pytest.mark.parametrize("kind", TOLD)


@attrs.define(eq=False)
class Server:
    """A model that counts one token for so many bytes, and refuses requests above its window, as their server does.

    Attributes:
        kind: what its refusals tell.
        bytes_per_token: of its tokenizer; the estimate has four.
        counts_cap: whether the cap of the answer counts, too.
        answer: its answers.
        refused: the sizes of the requests that it refused.
        counts: its counts of the others.
        asked: the requests that it answered.
    """

    kind: str = "window and count"
    bytes_per_token: float = 2.5
    counts_cap: bool = False
    answer: str = "word " * 150
    summary: str = "SECRET summary"
    refused: list[int] = attrs.field(factory=list)
    counts: list[int] = attrs.field(factory=list)
    asked: list[ModelRequest] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer or refuse."""
        await trio.lowlevel.checkpoint()
        count = int(sent_size(request.messages) / self.bytes_per_token)
        cap = (request.answer_cap(10**9) or 0) if self.counts_cap else 0
        if count + cap > WINDOW:
            self.refused.append(count)
            cause, details = TOLD[self.kind]
            raise ProviderError("too long", cause=cause, retryable=False, details=details(count))
        self.counts.append(count)
        self.asked.append(attrs.evolve(request, messages=tuple(request.messages)))
        if wants_summary(request):
            return reply(self.summary, usage=Usage(count, 30))
        if request.answer_schema is not None:
            return reply('{"n": 1}', usage=Usage(count, 5))
        return reply(self.answer, usage=Usage(count, 200))


def on(**changes: Any) -> Config:
    """Return settings with the defaults of compaction, for a model of an unknown window."""
    return attrs.evolve(Config(retry=RetryPolicy(max_attempts=2, jitter=0)), compaction=CompactionConfig(**changes))


OFF = Config(retry=RetryPolicy(max_attempts=2, jitter=0))


async def talk(service: SessionService, session_id: str, turns: int, recorder: Recorder | None = None) -> None:
    """Run so many turns, each of which has to be answered."""
    for number in range(turns):
        await service.start_turn(session_id, f"{number} {PROMPT}", on_event=recorder)


@told
async def test_a_session_goes_on_within_a_window_that_nobody_knew(store: Path | None, kind: str) -> None:
    """The refusal teaches the window, the context is compacted within it, and the same turn gets its answer."""
    server, recorder = Server(kind), Recorder()
    async with compacting(server, store, config=on()) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 20, recorder)
    assert recorder.only(Retrying)
    assert recorder.only(CompactionCompleted)
    assert "summary" in repr(summaries(server.asked[-1].messages))
    assert_whole_compactions(recorder.events)
    assert len(server.refused) <= 4, server.refused


@told
async def test_without_compaction_the_request_is_cut(store: Path | None, kind: str) -> None:
    """The oldest messages are left out of the request alone: every turn is answered, the history stays whole."""
    server, recorder = Server(kind), Recorder()
    async with compacting(server, store, config=OFF) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 20, recorder)
        assert (await service.read(session_id)).state.compactions == 0
        assert not any(entry.left_out for entry in (await service.history(session_id, limit=100)).messages)
        with pytest.raises(CompactionDisabledError):
            await service.compact(session_id)
    assert server.asked[-1].messages[0].content == "be brief"  # type: ignore[union-attr]
    repaired = recorder.only(RequestRepaired)
    assert {event.action for event in repaired} == {"shortened"}
    assert "the oldest" in repaired[-1].what
    assert len(server.refused) <= 4, server.refused


async def test_a_file_that_is_too_large_says_nothing_of_the_window() -> None:
    """A 413 about a context with a file in it is a lesson for its turn alone."""
    server = Server("413")

    class Seeing:
        kinds = frozenset({"image"})

        async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return await server.complete(request, emit)

    image = File(b"\x89PNG\r\n\x1a\n")
    async with compacting(Seeing(), config=OFF) as service:
        session_id = await new_session(service)
        for number in range(12):
            await service.start_turn(session_id, f"{number} {PROMPT}", attachments=[] if number else [image])
        assert server.refused
        assert not supervisor_of(service).shared.lessons.known


async def test_the_estimate_follows_the_servers_counts() -> None:
    """A server that counts more than the estimate in a known window refuses nothing: its own counts correct it."""
    server = Server(bytes_per_token=2)
    async with compacting(server, config=on(window=WINDOW)) as service:
        await talk(service, await new_session(service), 30)
    assert server.refused == []
    assert max(server.counts) > WINDOW // 2


async def test_the_estimate_is_right_after_a_restart(tmp_path: Path) -> None:
    """The next process knows from the record how the server counts."""
    server, session_id = Server(bytes_per_token=2), None
    for _ in range(12):
        async with compacting(server, tmp_path, config=on(window=WINDOW)) as service:
            session_id = session_id or await new_session(service)
            await talk(service, session_id, 2)
    assert server.refused == []


@told
async def test_other_sessions_learn_from_a_refusal(kind: str) -> None:
    """A window that a server has told holds for all sessions of its model, and is asked for again after a while."""
    server = Server(kind)
    async with compacting(server, config=on()) as service:
        await talk(service, await new_session(service), 12)
        refused = len(server.refused)
        other = await new_session(service)
        await talk(service, other, 12)
        assert len(server.refused) == refused
        lessons, candidate = supervisor_of(service).shared.lessons, server
        assert lessons.known
        await trio.sleep(REMEMBERED + 1)
        await talk(service, await new_session(service), 12)
        assert len(server.refused) > refused, candidate


async def test_a_cap_that_counts_is_lowered() -> None:
    """A server that wants room for the whole answer gets a smaller cap before any message is left out."""
    server = Server("window", counts_cap=True)
    async with compacting(server, config=on()) as service:
        session_id = await new_session(service, max_tokens=2_950)
        assert (await service.start_turn(session_id, PROMPT)).text
        await talk(service, session_id, 12)
    caps = [request.answer_cap(10**9) for request in server.asked]
    assert all(cap is not None and cap < WINDOW for cap in caps)
    assert len(server.asked[0].messages) == 1


async def test_an_answer_that_may_not_be_so_long() -> None:
    """A refusal that tells the longest answer of a model is followed by a request for no longer one."""
    caps: list[int | None] = []

    class Short:
        async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
            await trio.lowlevel.checkpoint()
            caps.append(request.answer_cap(10**9))
            if (caps[-1] or 0) > 4_096:
                details = {"max_output": 4_096}
                raise ProviderError("max_tokens is too large", cause="bad_request", retryable=False, details=details)
            return reply("fine")

    async with compacting(Short(), config=OFF) as service:
        session_id = await new_session(service, max_tokens=9_000)
        assert (await service.start_turn(session_id, "hi")).text == "fine"
        assert (await service.start_turn(session_id, "hi")).text == "fine"
    assert caps == [9_000, 4_096, 4_096]


@told
async def test_by_hand_and_in_a_fork(store: Path | None, kind: str) -> None:
    """A context that has grown under another model is compacted by hand, and in the first turn of its fork."""
    large, server = Server(bytes_per_token=40), Server(kind)

    class Both:
        async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return await (large if request.model == "large" else server).complete(request, emit)

    async with compacting(Both(), store, config=on()) as service:
        session_id = await new_session(service)
        for _ in range(30):
            await service.start_turn(session_id, PROMPT, model="large", provider="test")
        fork = (await service.fork(session_id, at=50)).state.session_id
        assert (await service.start_turn(fork, "go on")).text == server.answer
        assert (await service.compact(session_id)).messages_after < 20
        assert (await service.start_turn(session_id, "go on")).text == server.answer


@told
async def test_the_request_for_data(kind: str) -> None:
    """The request for the answer as data is shortened like any other."""
    server = Server(kind)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with compacting(server, config=on()) as service:
        session_id = await new_session(service)
        for _ in range(14):
            done = await service.start_turn(session_id, PROMPT, output_schema=schema)
            assert done.structured_output == {"n": 1}


@tool
async def fetch() -> str:
    """Fetch a large page."""
    await trio.lowlevel.checkpoint()
    return "page " * 10_000


@pytest.mark.parametrize("config", [on(), OFF], ids=["on", "off"])
@told
async def test_a_result_over_the_window(kind: str, config: Config) -> None:
    """A tool's result that no request can hold is shortened in the same turn, and the call does not run again."""
    server = Server(kind)
    asked = server.complete

    async def complete(request: ModelRequest, emit: Emit) -> ModelReply:
        done = await asked(request, emit)
        if len(server.asked) == 1:
            return reply("", ToolUseBlock("call-1", "fetch"), usage=done.usage)
        return done

    class Calling:
        async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return await complete(request, emit)

    async with compacting(Calling(), config=config, tools=[fetch]) as service:
        session_id = await new_session(service)
        assert (await service.start_turn(session_id, "read it")).text == server.answer
        assert (await service.start_turn(session_id, "and now?")).text == server.answer


@pytest.mark.parametrize("config", [on(), OFF], ids=["on", "off"])
@told
async def test_a_prompt_over_the_window_ends_nothing_but_its_turn(kind: str, config: Config) -> None:
    """A prompt that cannot fit is refused with the server's words, and the next one is answered."""
    server = Server(kind)
    async with compacting(server, config=config) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 3)
        with pytest.raises(ProviderError, match="too long"):
            await service.start_turn(session_id, "long " * 10_000)
        await talk(service, session_id, 3)


@pytest.mark.parametrize("summary", ["", " \n", "reasoning"])
async def test_an_empty_summary_is_none(summary: str) -> None:
    """A summary without a text is a failure; the context is cut without it, and the turn is answered."""
    server, recorder = Server(summary=""), Recorder()

    class Empty:
        async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
            done = await server.complete(request, emit)
            if wants_summary(request):
                only = ReasoningBlock(summary, {}) if summary == "reasoning" else TextBlock(summary)
                return ModelReply(AssistantMessage((only,)), done.usage)
            return done

    async with compacting(Empty(), config=on()) as service:
        await talk(service, await new_session(service), 14, recorder)
    assert {event.reason for event in recorder.only(CompactionFailed)} == {"empty_summary"}


async def test_compaction_that_cannot_help_says_so_once() -> None:
    """If what has to stay is above the threshold, one event says so, and no summary is paid for every few steps."""
    server, recorder = Server(bytes_per_token=40), Recorder()
    config = settings(1_000, recent_turn_budget=4, min_turns_between_compactions=3, config=on())
    async with compacting(server, config=config) as service:
        session_id = await new_session(service, system_prompt="rules " * 1_000)
        await talk(service, session_id, 30, recorder)
    failed = [event for event in recorder.only(CompactionFailed) if "waits" in event.error]
    assert 1 <= len(failed) <= 4
    assert sum(map(wants_summary, server.asked)) <= 6
