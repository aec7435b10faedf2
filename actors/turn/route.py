"""The models of a turn: the one that is called, and those that take over if it is overloaded or away."""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import trio

from warren.base.errors import InvalidParamsError
from warren.base.values import define, value
from warren.conversation.attachments import Kind
from warren.conversation.options import ModelOptions
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry, Models, entry_of
from warren.models.model import ModelChoice, ModelRequest, Providers

GROWTH: Final = 2.0
LONGEST_COOL_DOWN: Final = 300.0
"""Seconds that a computed cool-down may grow to; a provider may ask for more."""
MOST_OUTAGES: Final = 1_000
"""Models of which an outage is remembered: clients name models."""


@value
class Candidate:
    """A model that a turn may call.

    Attributes:
        name: its name, as the session or the turn has it.
        choice: the resolved model.
        entry: the facts about it, such as its prices.
        hour: whether its prompt cache keeps requests for an hour.
    """

    name: str
    choice: ModelChoice
    entry: ModelEntry
    hour: bool = False

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of attachments that it takes."""
        return self.entry.kinds if self.choice.kinds is None else self.choice.kinds

    def priced(self, usage: Usage) -> Usage:
        """Return the tokens of a call with their cost, unless the provider has told it."""
        if usage.cost is not None:
            return usage
        cost = self.entry.cost(usage, hour=self.hour)
        return usage if cost is None else attrs.evolve(usage, cost=cost)


@define
class _Outage:
    """An outage of a model: calls go elsewhere until its time is over, and then one call tries the model."""

    until: float
    seconds: float
    probed: bool = False


@define(eq=False)
class Outages:
    """The models of a runtime that were overloaded or away a moment ago.

    A model that has failed is left alone for its cool-down by all sessions that have another one. Then one call tries
    it while the others still go elsewhere: it either ends the outage or begins a longer cool-down.

    Attributes:
        cool_down: seconds of the first cool-down.
    """

    cool_down: float
    _known: dict[tuple[str, str], _Outage] = attrs.field(factory=dict)

    def is_free(self, choice: ModelChoice) -> bool:
        """Return whether a call may go to a model: it is not out, or its cool-down is over and nobody tries it yet."""
        outage = self._known.get(_key(choice))
        return outage is None or not (outage.probed or trio.current_time() < outage.until)

    def probe(self, choice: ModelChoice) -> bool:
        """Begin a call to a free model; return whether the call tries it, so that it has to say how that went."""
        outage = self._known.get(_key(choice))
        if outage is not None:
            outage.probed = True
        return outage is not None

    def failed(self, choice: ModelChoice, retry_after: float | None) -> None:
        """Note that a model is overloaded or away."""
        now, asked, outage = trio.current_time(), retry_after or 0.0, self._known.get(_key(choice))
        if outage is not None and not outage.probed:  # another session has found the same
            outage.until = max(outage.until, now + asked)
            return
        if outage is None and len(self._known) >= MOST_OUTAGES:
            self._known.clear()
        seconds = self.cool_down
        if outage is not None:
            seconds = min(outage.seconds * GROWTH, max(LONGEST_COOL_DOWN, seconds))
        self._known[_key(choice)] = _Outage(now + max(seconds, asked), seconds)

    def answered(self, choice: ModelChoice) -> None:
        """Note that a model has answered."""
        self._known.pop(_key(choice), None)

    def unknown(self, choice: ModelChoice) -> None:
        """Note that the call that tried a model has ended without a verdict: the next one tries it again."""
        if (outage := self._known.get(_key(choice))) is not None:
            outage.probed = False


def _key(choice: ModelChoice) -> tuple[str, str]:
    return choice.name, choice.model


@define(eq=False)
class Route:
    """The models of a turn in the order in which they take over. A turn does not go back to one that has failed.

    Attributes:
        candidates: the models; at least one.
        outages: those of the runtime.
        current: the model that is called.
        single: whether no other model can take over. Then the route never changes, and turns may share it.
        stand_in: the name of the model that is called if another one has taken over; else None.
    """

    candidates: Sequence[Candidate]
    outages: Outages
    current: Candidate = attrs.field(init=False)
    single: bool = attrs.field(init=False)
    stand_in: str | None = attrs.field(default=None, init=False)
    _place: int = attrs.field(default=0, init=False)
    _probing: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.current = self.candidates[0]
        self.single = len(self.candidates) == 1

    def enter(self) -> bool:
        """Begin a call: pass over models that failed a moment ago. Return whether another model takes over.

        If all of them did, the call goes to the current one nevertheless.
        """
        return self._to_first_free(self._place)

    def leave(self, retry_after: float | None) -> bool:
        """Leave a model that is overloaded or away. Return whether another one takes over."""
        self._probing = False
        self.outages.failed(self.current.choice, retry_after)
        return self._to_first_free(self._place + 1)

    def _to_first_free(self, first: int) -> bool:
        place = next(self._free(first), self._place)
        moved, self._place, self.current = place != self._place, place, self.candidates[place]
        self.stand_in = self.current.name if place else None
        self._probing = self.outages.is_free(self.current.choice) and self.outages.probe(self.current.choice)
        return moved

    def _free(self, first: int) -> Iterator[int]:
        places = range(first, len(self.candidates))
        return (place for place in places if self.outages.is_free(self.candidates[place].choice))

    @property
    def should_leave(self) -> bool:
        """Whether other sessions have found the model overloaded or away meanwhile, and another one may take over."""
        out = not self._probing and not self.outages.is_free(self.current.choice)
        return out and next(self._free(self._place + 1), None) is not None

    def end(self, *, answered: bool) -> None:
        """Say that the call has ended: the model has answered, or there is no verdict on it."""
        if answered:
            self.outages.answered(self.current.choice)
        elif self._probing:
            self.outages.unknown(self.current.choice)
        self._probing = False

    def addressed(self, request: ModelRequest) -> ModelRequest:
        """Return a request to the current model: the request itself if it is one."""
        current, files = self.current, request.files
        model, most, kinds = current.choice.model, current.entry.max_output, current.kinds
        if (request.model, request.max_output, files.kinds) == (model, most, kinds):
            return request
        return attrs.evolve(request, model=model, max_output=most, files=attrs.evolve(files, kinds=kinds))


def candidates_of(
    providers: Providers, model: str, provider: str | None, options: ModelOptions, models: Models
) -> tuple[Candidate, ...]:
    """Return the models of a turn: the model, and those of the option `fallback`, whose names decide the providers.

    Raises:
        InvalidParamsError: if a model or the provider is unknown, or a model cannot be called with the options.
    """
    hour = options.prompt_cache == "1h"
    choices = [(model, providers.resolve(model, provider))]
    for place, name in enumerate(options.fallback or ()):
        try:
            choices.append((name, providers.resolve(name, None)))
        except InvalidParamsError as exc:
            raise exc.of(f"$.fallback[{place}]") from None
    for _, choice in choices:
        choice.check(options)
    return tuple([Candidate(name, choice, entry_of(choice.model, models), hour) for name, choice in choices])
