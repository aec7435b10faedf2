"""The users of the sessions: how they send a request until they know its end, and what they remember of it."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import attrs
import trio

from tests.simulation.followers import Sight
from tests.simulation.servers import marked
from tests.simulation.world import Node, World
from warren.base.errors import SessionNotFoundError, WarrenError
from warren.base.principals import LOCAL, Principal
from warren.calls.facade import SessionService
from warren.conversation.views import TurnResult

R = TypeVar("R")
Act = Callable[[SessionService], Awaitable[R]]
TENANTS: Final = {"default": LOCAL, "rival": Principal("rival", "rita")}
PASSING: Final = frozenset({"closed", "connection_lost", "crash", "shutting_down", "unreachable"})
"""Causes of errors after which a request that changes nothing is sent again, also if they do not pass at that node."""


class GoneError(Exception):
    """The process went away with a request that must not be sent again."""


@attrs.define(eq=False)
class Prompt:
    """A prompt that was sent.

    Attributes:
        name: the name of its operation.
        sent: the moment at which it was sent first.
        keyed: whether it has a key.
        ended: the moment at which its end was known.
        text: the text of the answer; None for none.
        error: the final error; None for none.
    """

    name: str
    sent: float
    keyed: bool
    ended: float | None = None
    text: str | None = None
    error: WarrenError | None = None

    def end(self, outcome: "TurnResult | WarrenError | GoneError") -> None:
        """Note the end that the user was told."""
        self.ended = trio.current_time()
        if isinstance(outcome, TurnResult):
            self.text = outcome.text
        elif isinstance(outcome, WarrenError):
            self.error = outcome


@attrs.define(eq=False)
class Told:
    """All that the users of one session were told.

    Attributes:
        place: its place in the plan.
        tenant: its tenant.
        session_id: its id, once it is made.
        durable: whether all of its turns are stored step by step; a prompt may steer the turn of another one.
        prompts: its prompts by name.
        asked: for each key, how to ask for its end again.
        ends: for each key, each end that was told.
        contexts: the names of the texts that are in its inbox for certain.
        labels: the labels that it has for certain.
        waiting: at the end, the names of the inputs that wait.
        kept_labels: at the end, its labels.
        queues: for each look at its inbox, the names of the prompts that waited, in their order.
        scheduled: the names of the prompts that were to be sent once, at a time.
        fired: at the end, how often each prompt of a schedule was sent.
        seen: for each look at its history, the moment of the request and the names of the prompts.
        forks: the ids of its forks.
        whole: the ids of those that have all turns that had ended.
        budgets: the most steps that a turn and its children may take together, by the name of its prompt.
        touched: the children for whose end somebody has asked.
        withdrawn: the names of the inputs that were taken back.
        taken_back: the texts of the inputs that somebody has tried to take back.
        given: for each call, each result that was given from outside, with the error that its sender got.
        decided: for each call, each decision about it, with the error that its sender got.
        forbidden: the names of the prompts whose calls nobody allows.
        allowed: the beginnings of the ids of calls that need no approval, as their tool is allowed for the session.
        remembered: how often somebody has tried to allow a tool for the session.
        forgotten: how often somebody has tried to have a tool asked about again.
        disturbed: whether somebody has asked for the end of a turn, or taken a prompt back.
        leaving: whether somebody has asked for its end.
        over: "archived" or "deleted", once that is certain.
        sights: what its followers see.
    """

    place: int
    tenant: str
    session_id: str = ""
    durable: bool = True
    prompts: dict[str, Prompt] = attrs.field(factory=dict)
    asked: dict[str, Act[Any]] = attrs.field(factory=dict)
    ends: dict[str, list[str]] = attrs.field(factory=dict)
    contexts: list[str] = attrs.field(factory=list)
    labels: list[str] = attrs.field(factory=list)
    waiting: frozenset[str | None] = frozenset()
    kept_labels: frozenset[str] = frozenset()
    queues: list[list[str]] = attrs.field(factory=list)
    scheduled: list[str] = attrs.field(factory=list)
    fired: dict[str, int] = attrs.field(factory=dict)
    seen: list[tuple[float, frozenset[str]]] = attrs.field(factory=list)
    forks: list[str] = attrs.field(factory=list)
    whole: list[str] = attrs.field(factory=list)
    budgets: dict[str, int] = attrs.field(factory=dict)
    touched: set[str] = attrs.field(factory=set)
    withdrawn: list[str | None] = attrs.field(factory=list)
    taken_back: set[str] = attrs.field(factory=set)
    given: dict[str, list[tuple[str, WarrenError | None]]] = attrs.field(factory=dict)
    decided: dict[str, list[tuple[str, WarrenError | None]]] = attrs.field(factory=dict)
    forbidden: list[str] = attrs.field(factory=list)
    allowed: list[str] = attrs.field(factory=list)
    remembered: int = 0
    forgotten: int = 0
    disturbed: bool = False
    leaving: bool = False
    over: str = ""
    sights: list[Sight] = attrs.field(factory=list)

    def end(self, key: str, outcome: "TurnResult | WarrenError") -> None:
        """Note an end of a keyed request that was told."""
        if not isinstance(outcome, SessionNotFoundError):  # a key ends with its session
            self.ends.setdefault(key, []).append(end_of(outcome))

    @property
    def peer(self) -> str:
        """Its name among peers."""
        return f"peer-{self.place}"


def passes(error: WarrenError, *, changes: bool) -> bool:
    """Return whether a request is to be sent again: of one that changes something the error alone says so."""
    return error.retryable or (not changes and error.cause in PASSING)


def shown(outcome: Any) -> str:
    """Return an outcome for the diary, which has no ids: they differ from run to run."""
    if isinstance(outcome, WarrenError):
        return f"{outcome.code} {outcome.cause}"
    return repr(outcome)


def end_of(outcome: TurnResult | WarrenError) -> str:
    """Return an end of a keyed request as a text that is the same for all who ask."""
    if isinstance(outcome, WarrenError):
        return f"{outcome.code} {outcome.cause}: {outcome.message}"
    return f"{outcome.text} {outcome.structured_output} {outcome.first_seq}"


@attrs.define(eq=False)
class User:
    """The user that carries out one operation.

    Attributes:
        world: the world.
        told: the session that the operation is about.
        others: all sessions.
        number: the number of the operation.
        chance: draws what the operation leaves to chance.
    """

    world: World
    told: Told
    others: list[Told]
    number: int
    chance: random.Random

    @property
    def name(self) -> str:
        """The name of the operation, which its texts have in their marks."""
        return f"s{self.told.place}.{self.number}"

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.told.session_id

    def text(self, script: str = "") -> str:
        """Return the text of the operation."""
        return f"{marked(self.told.tenant, self.told.place, self.number, script)} please"

    def note(self, text: str) -> None:
        """Add a line to the diary."""
        self.world.record.note(f"{self.name}: {text}")

    async def node(self) -> Node:
        """Return a process that serves, once there is one."""
        while (found := self.world.any_node()) is None:  # noqa: ASYNC110 - nodes come and go
            await trio.sleep(0.1)
        return found

    async def send(self, act: Act[R], *, again: bool, changes: bool = False, tenant: str | None = None) -> R:
        """Send a request, and return the result.

        Args:
            act: sends it to a service.
            again: whether it is sent again until its end is known.
            changes: whether it may change something, so that its errors alone say if it is sent again.
            tenant: the tenant of the sender; None is that of the session.

        Raises:
            WarrenError: the final error, or the first one if it is not sent again.
            GoneError: if the process went away, and it is not sent again.
        """
        principal = TENANTS[tenant or self.told.tenant]
        while True:
            node = await self.node()
            with node.visit():
                try:
                    return await act(node.service.as_(principal))
                except WarrenError as exc:
                    final = not passes(exc, changes=changes)
                    self.note(f"{node.name} says {'finally ' if final else ''}{shown(exc)}")
                    if final or not again:
                        raise
            if not again:
                raise GoneError
            await trio.sleep(self.chance.uniform(0.02, 0.2))

    async def read(self, act: Act[R], *, tenant: str | None = None) -> R:
        """Send a request that changes nothing until there is a result. Raises WarrenError."""
        return await self.send(act, again=True, tenant=tenant)

    async def once(self, act: Act[R]) -> R:
        """Send a request once. Raises WarrenError or GoneError."""
        return await self.send(act, again=False, changes=True)

    async def keyed(self, key: str, act: Act[TurnResult]) -> TurnResult:
        """Send a request under a key until it has its end, and remember that. Raises WarrenError."""
        self.told.asked[key] = act
        outcome = await tried(self.send(act, again=True, changes=True))
        assert not isinstance(outcome, GoneError)
        self.told.end(key, outcome)
        if isinstance(outcome, WarrenError):
            raise outcome
        return outcome


def call(method: str, **options: Any) -> Act[Any]:
    """Return a function that calls a method of a service."""

    async def act(service: SessionService) -> Any:
        return await getattr(service, method)(**options)

    return act


async def tried(request: Awaitable[R]) -> R | WarrenError | GoneError:
    """Return the result of a request, or its error."""
    try:
        return await request
    except (WarrenError, GoneError) as exc:
        return exc
