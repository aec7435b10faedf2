"""The plan of a load run: plain values, and the turns that follow from them; no I/O."""

import random
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.fields import Between, FieldValueError, OneOf, not_negative, positive
from warren.base.values import frozen

Arrival = Literal["closed", "open", "ramp", "soak"]
ARRIVALS: Final = get_args(Arrival)
TOOL_WORD: Final = "use-the-tool"
WORDS: Final = ("burrow", "meadow", "clover", "tunnel", "evening", "rabbit", "root", "rain", "chalk", "thistle")


SHARE: Final = Between(0, 1)


@frozen(kw_only=True)
class Mix:
    """The share of turns, from 0 to 1, with each kind of special event; `subscribers` is a share of the sessions.

    Attributes:
        interrupts: turns that are interrupted after their first text.
        busy: turns during which a second one is started, which has to be refused.
        disconnects: turns whose client disconnects in the middle, reconnects, and has to get the rest.
        tools: turns in which the model calls a tool.
        compactions: turns after which the session is compacted.
        subscribers: sessions that a second client follows from the first event to the last.
    """

    interrupts: float = attrs.field(default=0.0, validator=SHARE)
    busy: float = attrs.field(default=0.0, validator=SHARE)
    disconnects: float = attrs.field(default=0.0, validator=SHARE)
    tools: float = attrs.field(default=0.0, validator=SHARE)
    compactions: float = attrs.field(default=0.0, validator=SHARE)
    subscribers: float = attrs.field(default=0.0, validator=SHARE)

    @property
    def disturbs(self) -> bool:
        """Whether some events happen in the middle of running turns."""
        return bool(self.interrupts or self.busy or self.disconnects)

    def __attrs_post_init__(self) -> None:
        """Raise FieldValueError if the shares of turns that end early are more than 1 in all."""
        if self.interrupts + self.disconnects > 1:
            raise FieldValueError("interrupts", "and disconnects must not be more than 1 together")


@frozen(kw_only=True)
class Profile:
    """The pace of the scripted model.

    Attributes:
        latency: seconds until the first piece of the answer.
        chunks: number of pieces of an answer.
        chunk_size: characters of a piece.
        chunk_delay: seconds between two pieces.
    """

    latency: float = attrs.field(default=0.05, validator=not_negative)
    chunks: int = attrs.field(default=10, validator=positive)
    chunk_size: int = attrs.field(default=20, validator=positive)
    chunk_delay: float = attrs.field(default=0.0, validator=not_negative)


@frozen(kw_only=True)
class BadClients:
    """The number of bad clients of a gateway at once, by kind.

    Attributes:
        idle: clients that open a WebSocket and never use it.
        slow: clients that send a request head byte by byte, and reconnect when they are dropped.
        flood: clients that connect and disconnect, a hundred times a second.
        huge: clients that send a frame above the bound, and reconnect when they are dropped.
    """

    idle: int = attrs.field(default=0, validator=not_negative)
    slow: int = attrs.field(default=0, validator=not_negative)
    flood: int = attrs.field(default=0, validator=not_negative)
    huge: int = attrs.field(default=0, validator=not_negative)


@frozen(kw_only=True)
class Conduct:
    """One turn of one session, planned before it begins.

    Attributes:
        prompt: the prompt; it is unique in a run.
        tag: the first word of the prompt, which the scripted model repeats.
        think: seconds between the turn before it and this one.
    """

    prompt: str
    tag: str
    think: float = 0.0
    interrupt: bool = False
    busy: bool = False
    disconnect: bool = False
    compact: bool = False


@frozen(kw_only=True)
class LoadPlan:
    """A load run. Raises FieldValueError for a bad value; times in seconds.

    Attributes:
        sessions: sessions, each with a client of its own.
        turns: turns of each session; of an open run, on average.
        arrival: `closed`: the next turn of a session begins after the end of its last one and a pause of its user;
            `ramp`: the same, and the sessions begin one after the other over `duration`; `soak`: the same until
            `duration` is over; `open`: turns begin at random times, `rate` in a second, even if earlier ones still run.
        rate: turns a second of an open run.
        duration: seconds of a soak, of a ramp, or of an open run.
        think: mean seconds of a user's pause between two turns; the pauses vary.
        turn_limit: seconds after which a turn counts as lost, which is a violation.
        prompt_min: the shortest prompt, in characters.
        prompt_max: the longest one.
        seed: the seed of all random choices: two runs of one plan have the same prompts in the same sessions.
        model: the model of the sessions; None is the target's default.
        capacity: turns that an in-process runtime admits at once; None is its default.
        recovery: whether the run ends with one more turn of each session, without other load, which must be admitted.
        profile: the scripted model of an in-process run.
        mix: the special events.
        bad_clients: the bad clients of the gateway during the run; a run in process has none.
    """

    sessions: int = attrs.field(default=100, validator=positive)
    turns: int = attrs.field(default=5, validator=positive)
    arrival: Arrival = attrs.field(default="closed", validator=OneOf(ARRIVALS))
    rate: float | None = attrs.field(default=None, validator=positive)
    duration: float | None = attrs.field(default=None, validator=positive)
    think: float = attrs.field(default=0.0, validator=not_negative)
    turn_limit: float = attrs.field(default=60.0, validator=positive)
    prompt_min: int = attrs.field(default=40, validator=positive)
    prompt_max: int = attrs.field(default=200, validator=positive)
    seed: int = 0
    model: str | None = None
    capacity: int | None = attrs.field(default=None, validator=positive)
    recovery: bool = False
    profile: Profile = attrs.field(factory=Profile)
    mix: Mix = attrs.field(factory=Mix)
    bad_clients: BadClients = attrs.field(factory=BadClients)

    def __attrs_post_init__(self) -> None:
        """Raise FieldValueError if a setting that the arrival needs is missing."""
        if (self.arrival == "open") != (self.rate is not None):
            raise FieldValueError("rate", "goes with arrival=open, and only with it")
        if self.arrival in ("ramp", "soak") and self.duration is None:
            raise FieldValueError("duration", f"is needed for arrival={self.arrival}")
        if self.arrival == "closed" and self.duration is not None:
            raise FieldValueError("duration", "has no meaning for arrival=closed")
        if self.prompt_min > self.prompt_max:
            raise FieldValueError("prompt_min", "must not be above prompt_max")

    def chance(self, *names: object) -> random.Random:
        """Return a random generator for a name: it is the same in every run, independent of the order of calls."""
        return random.Random(":".join(map(str, (self.seed, *names))))  # noqa: S311 - it is no secret

    def conducts(self, session: int) -> Iterator[Conduct]:
        """Yield the turns of a session, without end."""
        chance, number = self.chance("session", session), 0
        while True:
            yield self._conduct(f"s{session}-t{number}", chance, first=number == 0)
            number += 1

    def is_followed(self, session: int) -> bool:
        """Return whether a second client follows a session."""
        return self.chance("follow", session).random() < self.mix.subscribers

    def recovery_turn(self, session: int) -> Conduct:
        """Return the recovery turn of a session, at the end of a run that overloads its target."""
        tag = f"s{session}-recovery"
        return Conduct(prompt=f"{tag} are you well again?", tag=tag)

    def _conduct(self, tag: str, chance: random.Random, *, first: bool) -> Conduct:
        mix, fate = self.mix, chance.random()
        tool, busy, compact = (chance.random() < share for share in (mix.tools, mix.busy, mix.compactions))
        return Conduct(
            prompt=_prompt(tag, chance.randint(self.prompt_min, self.prompt_max), chance, tool=tool),
            tag=tag,
            think=0.0 if first or not self.think else chance.expovariate(1 / self.think),
            interrupt=fate < mix.interrupts,
            busy=busy,
            disconnect=mix.interrupts <= fate < mix.interrupts + mix.disconnects,
            compact=compact,
        )


def _prompt(tag: str, size: int, chance: random.Random, *, tool: bool) -> str:
    """Return words of about a size, beginning with the tag."""
    text = f"{tag} {TOOL_WORD}" if tool else tag
    while len(text) < size:
        text += f" {chance.choice(WORDS)}"
    return text


def plan_of(data: dict[str, Any]) -> LoadPlan:
    """Return a plan from its `attrs.asdict` form. Raises FieldValueError or TypeError for bad data."""
    parts = {"profile": Profile, "mix": Mix, "bad_clients": BadClients}
    return LoadPlan(**(data | {name: cls(**data.get(name, {})) for name, cls in parts.items()}))
