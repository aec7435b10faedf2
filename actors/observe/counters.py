"""The counts of a working runtime: plain numbers on the event loop, of which the metrics are made when they are read.

Nothing here waits, locks or allocates more than a number: a count costs a turn some hundred nanoseconds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, get_args

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.conversation.events import FailureCause
from warren.conversation.usage import Usage
from warren.models.catalog import listed_provider
from warren.models.model import ModelChoice
from warren.models.tools import Tool
from warren.reports.health import ToolsHealth
from warren.reports.metrics import OTHER, Series

MODELS: Final = 50
"""Models with series of their own, besides those of the settings and the catalog: clients name models."""
TOOLS: Final = 100
"""Tools of one kind with series of their own: programs, clients and MCP servers bring tools."""
LEFT_OUT_SECONDS: Final = 3600.0
"""Seconds for which the health tells of tools that were left out."""
MOST_LEFT_OUT: Final = 100
"""Reasons and tools of which the health tells."""
LONGEST: Final = 100
"""Characters of a label's value."""
OF_TURNS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
OF_CALLS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
OF_COMMITS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OF_LAGS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
OF_GROUPS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
CLIENTS: Final = "client"
"""The kind of all tools that clients bring; those of others are of their category."""
COMPLETED: Final = "completed"
FAILED: Final = "failed"
OUTCOMES: Final = (COMPLETED, *get_args(FailureCause))
"""The outcomes of turns. Each has its series from the start: Prometheus sees no increase in a series that is new."""


@define(eq=False)
class Histogram:
    """Observed values, counted in buckets.

    Attributes:
        bounds: the upper bounds of the buckets, ascending; a value on a bound is within it.
        counts: the values in each bucket, and at the end those above the last bound.
        sum: the sum of the values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    sum: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def series(self, *labels: str) -> Series:
        """Return the values of this moment."""
        return Series(labels, self.sum, tuple(self.counts))


@define(eq=False)
class ModelCounters:
    """The calls of one model, and the turns that were planned with it.

    Attributes:
        turns: the turns that have ended, by outcome.
        seconds: the durations of calls that succeeded; each attempt is a call.
        first_piece: the times from the beginning of a call to its first piece.
        errors: the calls that failed, by the cause of the error.
        retries: calls that were made again after an error.
        input_tokens: see `Usage`, as the three below.
        output_tokens: see above.
        cache_read_tokens: see above.
        cache_creation_tokens: see above.
    """

    turns: Counter[str] = attrs.field(factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    seconds: Histogram = attrs.field(factory=lambda: Histogram(OF_CALLS))
    first_piece: Histogram = attrs.field(factory=lambda: Histogram(OF_CALLS))
    errors: Counter[str] = attrs.field(factory=Counter)
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0

    def called(self, seconds: float, usage: Usage) -> None:
        """Count a call that succeeded. Tokens that are no numbers are left out: a provider may be the host's code."""
        self.seconds.add(seconds)
        sent, got = usage.input_tokens, usage.output_tokens
        read, made = usage.cache_read_tokens, usage.cache_creation_tokens
        if type(sent) is type(got) is type(read) is type(made) is int and min(sent, got, read, made) >= 0:
            self.input_tokens += sent
            self.output_tokens += got
            self.cache_read_tokens += read
            self.cache_creation_tokens += made


@define(eq=False)
class LeftOut:
    """The tools that providers have left out of requests in the last hour."""

    _seen: dict[tuple[str, str], float] = attrs.field(factory=dict)

    def note(self, what: str, why: str) -> None:
        """Note that tools were left out; of too many the oldest are forgotten."""
        self._seen.pop((what, why), None)
        self._seen[what, why] = trio.current_time()
        if len(self._seen) > MOST_LEFT_OUT:
            del self._seen[next(iter(self._seen))]

    def health(self) -> tuple[ToolsHealth, ...]:
        """Return the tools as a part of the runtime's health."""
        if not self._seen:
            return ()
        since = trio.current_time() - LEFT_OUT_SECONDS
        return tuple(ToolsHealth(what, why) for (what, why), seen in self._seen.items() if seen >= since)


@define(eq=False)
class Counters:
    """The counts of the turns of one runtime.

    A client cannot use up the series of others with names that it invents: a model has series of its own if the
    settings or the catalog name it, else from its first completed call on; a client's tool likewise.

    Attributes:
        named: the models that the settings name.
        models: those of each model, by the names of its provider and of itself.
        turn_seconds: the durations of turns, from their beginning to the commit of their end.
        steps: the steps of turns that have ended.
        events: the events of turns that have ended.
        tools: the tool calls that have ended, by the tool's name and the outcome.
        tool_seconds: the durations of tool calls that were begun.
        compactions: the attempts to compact, by outcome.
        resumed: the turns with which this process has gone on.
        forwarded: the calls that were passed on to other nodes.
        deliveries: the attempts to deliver to webhooks, by outcome.
        left_out: the tools that were left out of requests.
        now: returns the time as `trio.current_time`, without its look for the clock: a turn asks several times.
    """

    named: Collection[str] = ()
    models: dict[tuple[str, str], ModelCounters] = attrs.field(factory=dict)
    turn_seconds: Histogram = attrs.field(factory=lambda: Histogram(OF_TURNS))
    steps: int = 0
    events: int = 0
    tools: dict[tuple[str, str], int] = attrs.field(factory=dict)
    tool_seconds: Histogram = attrs.field(factory=lambda: Histogram(OF_CALLS))
    compactions: Counter[str] = attrs.field(factory=Counter)
    resumed: int = 0
    forwarded: int = 0
    deliveries: Counter[str] = attrs.field(factory=Counter)
    left_out: LeftOut = attrs.field(factory=LeftOut)
    now: Callable[[], float] = attrs.field(factory=lambda: trio.lowlevel.current_clock().current_time)
    _others: int = 0  # the models with series that nobody but clients has named
    _tool_names: set[str] = attrs.field(factory=set)
    _tools_of: Counter[str] = attrs.field(factory=Counter)

    def model(self, choice: ModelChoice, *, completed: bool = False) -> ModelCounters:
        """Return the counts of a model, or those of all models without series of their own.

        Args:
            choice: the model.
            completed: whether a call of it has just completed.
        """
        found = self.models.get((choice.name, choice.model))
        return self._new_model(choice, completed=completed) if found is None else found

    def called(self, choice: ModelChoice, seconds: float, first: float | None, usage: Usage) -> None:
        """Count a call that succeeded, by its duration, the time to its first piece, if it had any, and its tokens."""
        found = self.models.get((choice.name, choice.model))
        if found is None:
            found = self._new_model(choice, completed=True)
        found.called(seconds, usage)
        if first is not None:
            found.first_piece.add(first)

    def failed(self, choice: ModelChoice, error: WarrenError | None, first: float | None) -> None:
        """Count a call that failed, or was cancelled if there is no error."""
        if error is None and first is None:
            return
        found = self.model(choice)
        if error is not None:
            found.errors[error.cause or error.code.value.lower()] += 1
        if first is not None:
            found.first_piece.add(first)

    def _new_model(self, choice: ModelChoice, *, completed: bool) -> ModelCounters:
        key = (choice.name, choice.model)
        if not self._is_named(choice):
            if completed and self._others < MODELS and len(choice.model) <= LONGEST:
                self._others += 1
            else:
                key = (OTHER, OTHER)
        return self.models.setdefault(key, ModelCounters())

    def _is_named(self, choice: ModelChoice) -> bool:
        named = choice.model in self.named or f"{choice.name}:{choice.model}" in self.named
        return named or listed_provider(choice.model) == choice.name

    def turn(self, choice: ModelChoice | None, outcome: str, events: int, seconds: float, steps: int) -> None:
        """Count a turn that has ended.

        Args:
            choice: its model; None if it is not known any more.
            outcome: `completed`, or the cause of its failure.
            events: the number of its events in this process.
            seconds: its duration.
            steps: its steps.
        """
        if choice is None:
            found = self.models.setdefault((OTHER, OTHER), ModelCounters())
        else:
            found = self.models.get((choice.name, choice.model)) or self._new_model(choice, completed=False)
        found.turns[outcome] += 1
        self.turn_seconds.add(seconds)
        self.steps += steps
        self.events += events

    def tool(self, tool: Tool | None, outcome: str) -> None:
        """Count a tool call that has ended; calls of tools without series of their own are counted together.

        Args:
            tool: the tool; None if the session has none of the name that the model called.
            outcome: how the call has ended.
        """
        name = OTHER if tool is None else tool.spec.name
        if tool is not None and name not in self._tool_names:
            name = self._new_tool(name, tool, outcome)
        key = (name, outcome)
        self.tools[key] = self.tools.get(key, 0) + 1

    def _new_tool(self, name: str, tool: Tool, outcome: str) -> str:
        """Return the label of a tool without series: its name if it gets some now."""
        kind = CLIENTS if tool.of_client else tool.category
        if self._tools_of[kind] >= TOOLS or len(name) > LONGEST or (tool.of_client and outcome != COMPLETED):
            return OTHER
        self._tools_of[kind] += 1
        self._tool_names.add(name)
        return name
