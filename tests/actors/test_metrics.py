"""The metrics count what the runtime does."""

from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.models import FunctionModel, GatedModel, reply, says
from tests.support.runtime import new_session, open_runtime
from warren.actors.observe.counters import MODELS, TOOLS, Counters, Histogram
from warren.base.errors import (
    AgentError,
    CapacityExceededError,
    PermissionDeniedError,
    ProviderCause,
    ProviderError,
    StoreError,
)
from warren.base.principals import Principal
from warren.conversation.messages import ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry, known
from warren.models.model import ModelChoice, ModelReply, ModelRequest, TextPiece
from warren.models.tools import Tool, ToolSpec, tool
from warren.reports.metrics import OTHER, Series
from warren.settings.config import Config, Limits, RetryPolicy

pytestmark = pytest.mark.virtual_time
SURE = RetryPolicy(initial_delay=0, jitter=0)


def broken(cause: ProviderCause, *, retryable: bool = False) -> ProviderError:
    """Return an error of a provider."""
    return ProviderError("no", cause=cause, retryable=retryable)


async def test_turns_by_their_outcome(tmp_path: Path) -> None:
    """With their steps, events and durations; a turn that is not stored has failed."""
    faults = Faults()
    model = says(["hi"], broken("quota"), ["lost"])
    async with open_runtime(model, store=tmp_path, faults=faults) as service:
        result = await service.create_session("hello")
        with pytest.raises(ProviderError):
            await service.start_turn(result.session_id, "again")
        faults.refuse = apsw.FullError("the disk is full")
        with pytest.raises(StoreError):
            await service.start_turn(result.session_id, "once more")
        faults.refuse = None
        found = service.metrics()
    assert {each.labels[0]: each.value for each in found["warren_turns_total"].series if each.value} == {
        "completed": 1,
        "provider_error": 1,
        "store_error": 1,
    }
    assert found.total("warren_turn_duration_seconds") == found.total("warren_turns_total") == 3
    assert found.total("warren_steps_total") == 3
    assert result.first_seq is not None
    assert result.last_seq is not None
    assert found.total("warren_events_total") > result.last_seq - result.first_seq + 1


async def test_a_turn_that_is_cut_off_counts() -> None:
    """As its last event says."""
    model = GatedModel()
    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        assert service.metrics().total("warren_turns_total", "cancelled") == 1


async def test_model_calls() -> None:
    """Each attempt is a call, with the tokens that the provider reports and the time to its first piece."""

    async def answer(_request: ModelRequest, emit: Any) -> ModelReply:
        await trio.sleep(0.3)
        emit(TextPiece("h"))
        emit(TextPiece("i"))
        await trio.sleep(0.3)
        return reply("hi", usage=Usage(10, 2, cache_read_tokens=7))

    attempts = iter([broken("overloaded", retryable=True), None])

    async def twice(request: ModelRequest, emit: Any) -> ModelReply:
        if (error := next(attempts)) is not None:
            raise error
        return await answer(request, emit)

    async with open_runtime(FunctionModel(twice), config=Config(model="test", retry=SURE)) as service:
        await service.create_session("hello")
        found = service.metrics()
    assert [each.labels for each in found["warren_model_errors_total"].series] == [("test", "test", "overloaded")]
    assert found.total("warren_model_retries_total") == found.total("warren_model_call_duration_seconds") == 1
    (took,) = found["warren_model_call_duration_seconds"].series
    (first,) = found["warren_model_first_chunk_seconds"].series
    assert took.value == pytest.approx(0.6)
    assert first.value == pytest.approx(0.3)
    assert sum(first.counts) == 1
    tokens = {each.labels[0]: each.value for each in found["warren_tokens_total"].series}
    assert tokens == {"input": 10, "output": 2, "cache_read": 7, "cache_creation": 0}


@pytest.mark.parametrize("count", [-1, None, 1.5, "3", True])
async def test_tokens_that_cannot_be_counted(count: Any) -> None:
    """A provider of the host may report anything: the totals stay numbers that only grow."""
    counters = Counters().model(ModelChoice(says(), "test"))
    counters.called(0.1, Usage(count, 3))
    counters.called(0.1, Usage(2, 3))
    assert (counters.input_tokens, counters.output_tokens, sum(counters.seconds.counts)) == (2, 3, 2)


async def test_tools() -> None:
    """By the tool and the outcome; a tool that does not exist has no series of its own."""

    @tool
    async def good() -> str:
        """Succeed."""
        await trio.sleep(2)
        return "done"

    @tool
    async def bad() -> str:
        """Fail."""
        raise ValueError("no")

    @tool(timeout=1)
    async def slow() -> str:
        """Take too long."""
        await trio.sleep(5)
        return "late"

    called = [("good", {}), ("bad", {}), ("slow", {}), ("invented", {}), ("good", {"x": 1})]
    wanted = (ToolUseBlock(str(number), name, args) for number, (name, args) in enumerate(called))
    model = says(reply("", *wanted), ["ok"])
    async with open_runtime(model, tools=[good, bad, slow]) as service:
        await service.create_session("go")
        found = service.metrics()
    assert {each.labels: each.value for each in found["warren_tool_calls_total"].series} == {
        ("good", "completed"): 1,
        ("bad", "failed"): 1,
        ("slow", "timed_out"): 1,
        (OTHER, "refused"): 1,
        ("good", "refused"): 1,
    }
    (took,) = found["warren_tool_duration_seconds"].series
    assert took.value == pytest.approx(3)
    assert sum(took.counts) == 3


async def test_sessions_and_refusals() -> None:
    """The figures of the moment, and the turns for which there was no room."""
    model, config = GatedModel(), Config(limits=Limits(max_sessions=1))
    async with open_runtime(model, config=config) as service, trio.open_nursery() as nursery:
        runs, other = [await new_session(service) for _ in range(2)]
        running = ask(nursery, service.start_turn, runs, "go")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CapacityExceededError):
            await service.start_turn(other, "go")
        async with service.subscribe(other):
            found = service.metrics()
        names = ("warren_sessions_live", "warren_turns_running", "warren_turns_limit", "warren_subscribers")
        assert [found.total(name) for name in names] == [2, 1, 1, 1]
        assert found.total("warren_admission_refused_total", "max_sessions") == 1
        model.gate.set()
        await running.value()
        assert service.metrics().total("warren_turns_running") == 0


async def test_commits(tmp_path: Path) -> None:
    """Their number, their operations and the errors by cause; a runtime without a store has none of them."""
    faults = Faults()
    async with open_runtime(says(["hi"], ["hi"]), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        before = service.metrics().total("warren_commit_duration_seconds")
        await service.start_turn(session_id, "go")
        faults.refuse = apsw.FullError("the disk is full")
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go")
        faults.refuse = None
        found = service.metrics()
    assert found.total("warren_commit_duration_seconds") == found.total("warren_commit_group_size") == before + 1
    assert found.total("warren_commit_errors_total", "disk_full") == 1
    assert found.total("warren_store_queue") == 0
    async with open_runtime(says()) as service:
        with pytest.raises(KeyError):
            service.metrics()["warren_commit_duration_seconds"]


async def test_lag_and_health() -> None:
    """The lag has a histogram of all timers since the start; the health of each part is a number."""
    async with open_runtime(says()) as service:
        await trio.sleep(10)
        found = service.metrics()
        assert found.total("warren_loop_lag_seconds") >= 19
        assert {each.labels: each.value for each in found["warren_health"].series} == {("all",): 0, ("loop",): 0}
        with trio.move_on_after(0):
            await service.drain()
        assert service.metrics().total("warren_health", "all") == 1


async def test_labels_are_bounded() -> None:
    """Beyond a bound all models that clients name, and all tools of a kind, share a series."""
    counters = Counters()
    for number in range(2 * MODELS):
        counters.model(ModelChoice(says(), f"model-{number}", "mine"), completed=True).retries += 1
    counters.model(ModelChoice(says(), "x" * 1000, "mine"), completed=True).retries += 1
    assert len(counters.models) == MODELS + 1
    assert counters.models[OTHER, OTHER].retries == MODELS + 1
    tools = [_tool(f"tool-{number}") for number in range(2 * TOOLS)]
    for each in tools:
        counters.tool(each, "completed")
    counters.tool(tools[1], "failed")
    assert len(counters.tools) == TOOLS + 2
    assert counters.tools[OTHER, "completed"] == TOOLS


def _tool(name: str, *, of_client: bool = False) -> Tool:
    return Tool(ToolSpec(name, "", {}), lambda: "", is_async=False, of_client=of_client)


async def test_invented_names_use_up_no_series() -> None:
    """A client's sessions with a thousand invented models leave the models of settings, catalog and answers theirs."""

    async def answer(request: ModelRequest, _emit: Any) -> ModelReply:
        if request.model.startswith("invented"):
            raise broken("bad_request")
        return reply("hi")

    catalog = next(iter(known()))
    config = Config(model="mine", provider="test", models={"listed": ModelEntry(window=1000)}, retry=SURE)
    async with open_runtime(FunctionModel(answer), config=config) as service:
        for number in range(1_000):
            with pytest.raises(ProviderError):
                await service.create_session("hello", model=f"invented-{number}", provider="test")
        for model in ("mine", "listed", "answers"):
            await service.create_session("hello", model=model, provider="test")
        found = service.metrics()
    assert {each.labels[2] for each in found["warren_turns_total"].series} == {OTHER, "mine", "listed", "answers"}
    assert {each.labels[1] for each in found["warren_model_errors_total"].series} == {OTHER}
    counters = Counters()
    for number in range(2 * MODELS):
        counters.model(ModelChoice(says(), f"answers-{number}", "mine"), completed=True)
    provider = known()[catalog].provider or ""
    assert counters.model(ModelChoice(says(), catalog, provider)) is counters.models[provider, catalog]
    assert counters.model(ModelChoice(says(), catalog, "another")) is counters.models[OTHER, OTHER]


async def test_tools_of_clients_use_up_no_series() -> None:
    """A client's tools get series by completed calls, and share a bound that is theirs alone."""
    counters = Counters()
    for number in range(2 * TOOLS):
        counters.tool(_tool(f"invented-{number}", of_client=True), "failed")
    assert set(counters.tools) == {(OTHER, "failed")}
    for number in range(2 * TOOLS):
        counters.tool(_tool(f"answers-{number}", of_client=True), "completed")
    counters.tool(_tool("ours"), "failed")
    assert counters.tools["ours", "failed"] == counters.tools["answers-0", "completed"] == 1
    assert counters.tools[OTHER, "completed"] == TOOLS


async def test_no_label_names_a_session() -> None:
    """Nor a text of a conversation."""
    async with open_runtime(says(["the answer is secret"])) as service:
        session_id = (await service.create_session("a secret question")).session_id
        values = {value for metric in service.metrics().metrics for each in metric.series for value in each.labels}
    assert session_id not in values
    assert not any("secret" in value for value in values)


async def test_a_principal_needs_the_scope() -> None:
    """The metrics are those of all tenants."""
    async with open_runtime(says()) as service:
        with pytest.raises(PermissionDeniedError):
            service.as_(Principal(scopes=frozenset({"session:read"}))).metrics()
        assert service.as_(Principal(tenant="other", scopes=frozenset({"metrics:read"}))).metrics().metrics


def test_histograms() -> None:
    """A value on a bound is within its bucket."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.add(value)
    assert histogram.series("x") == Series(("x",), 8.0, (2, 2, 1))
