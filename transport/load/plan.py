"""What a load run does: plain values, and the turns that follow from them; no I/O."""

import random
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args

import attrs

from warren.fields import FieldValueError, not_negative, positive

Arrival = Literal["closed", "open", "ramp", "soak"]
ARRIVALS: Final = get_args(Arrival)
TOOL_WORD: Final = "use-the-tool"
WORDS: Final = ("burrow", "meadow", "clover", "tunnel", "evening", "rabbit", "root", "rain", "chalk", "thistle")


def _share(_instance: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 <= value <= 1:
        raise FieldValueError(attribute.name, "must be from 0 to 1")


@attrs.frozen(kw_only=True)
class Mix:
    """How many of the turns, each from 0 to 1, do something out of the ordinary; `subscribers` is of the sessions.

    Attributes:
        interrupts: turns that are interrupted once they have said something.
        busy: turns into which a second one is started, which has to be refused.
        disconnects: turns whose client goes away in the middle, comes back, and has to get the rest.
        tools: turns in which the model calls a tool.
        compactions: turns after which the session is compacted.
        subscribers: sessions that somebody else follows from the first event to the last.
    """

    interrupts: float = attrs.field(default=0.0, validator=_share)
    busy: float = attrs.field(default=0.0, validator=_share)
    disconnects: float = attrs.field(default=0.0, validator=_share)
    tools: float = attrs.field(default=0.0, validator=_share)
    compactions: float = attrs.field(default=0.0, validator=_share)
    subscribers: float = attrs.field(default=0.0, validator=_share)

    @property
    def disturbs(self) -> bool:
        """Whether something has to happen in the middle of turns, while they run."""
        return bool(self.interrupts or self.busy or self.disconnects)

    def __attrs_post_init__(self) -> None:
        """Refuse more turns that do not end where they began than there are."""
        if self.interrupts + self.disconnects > 1:
            raise FieldValueError("interrupts", "and disconnects must not be more than 1 together")


@attrs.frozen(kw_only=True)
class Profile:
    """How the scripted model answers; times in seconds.

    Attributes:
        latency: until the first piece of the answer.
        chunks: pieces of an answer.
        chunk_size: characters of a piece.
        chunk_delay: between two pieces.
    """

    latency: float = attrs.field(default=0.05, validator=not_negative)
    chunks: int = attrs.field(default=10, validator=positive)
    chunk_size: int = attrs.field(default=20, validator=positive)
    chunk_delay: float = attrs.field(default=0.0, validator=not_negative)


@attrs.frozen(kw_only=True)
class Strangers:
    """Clients of a gateway that are no users; how many of each kind there are at once.

    Attributes:
        idle: open a WebSocket and never use it.
        slow: send a head byte by byte, and begin again when they are dropped.
        flood: connect and leave, a hundred times a second.
        huge: send a frame that is far too long, and begin again when they are dropped.
    """

    idle: int = attrs.field(default=0, validator=not_negative)
    slow: int = attrs.field(default=0, validator=not_negative)
    flood: int = attrs.field(default=0, validator=not_negative)
    huge: int = attrs.field(default=0, validator=not_negative)


@attrs.frozen(kw_only=True)
class Conduct:
    """One turn of one session, decided before it begins.

    Attributes:
        prompt: what is said; no two turns of a run say the same.
        tag: the word at its head, which the scripted model repeats.
        think: seconds between the turn before it and this one.
    """

    prompt: str
    tag: str
    think: float = 0.0
    interrupt: bool = False
    busy: bool = False
    disconnect: bool = False
    compact: bool = False


@attrs.frozen(kw_only=True)
class LoadPlan:
    """A load run. Raises FieldValueError for a bad value; times in seconds.

    Attributes:
        sessions: sessions, each with a client of its own.
        turns: turns of each session; of an open run, on average.
        arrival: `closed`: each session goes on when its turn has ended and its user has thought; `ramp`: the same, and
            the sessions join one after the other over `duration`; `soak`: the same until `duration` is over; `open`:
            turns begin at random moments, `rate` in a second, whether those before them have ended or not.
        rate: turns a second of an open run.
        duration: of a soak, or of the ramp; an open run ends then too.
        think: the mean of a user's pause between two turns; the pauses vary.
        turn_limit: after so long a turn counts as lost, which is a violation.
        prompt_min: the shortest prompt, in characters.
        prompt_max: the longest one.
        seed: all chance comes from it: two runs with the same plan say the same in the same sessions.
        model: the model that the sessions ask for; None takes what the target gives.
        capacity: turns that an in-process runtime admits at once; None takes its default.
        recovery: whether the run ends with one calm turn of each session, which must be admitted.
        profile: the scripted model of an in-process run.
        mix: what else happens.
        strangers: who else is at the gateway, while the sessions are; a run in process has none.
    """

    sessions: int = attrs.field(default=100, validator=positive)
    turns: int = attrs.field(default=5, validator=positive)
    arrival: Arrival = "closed"
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
    strangers: Strangers = attrs.field(factory=Strangers)

    def __attrs_post_init__(self) -> None:
        """Refuse an arrival without what it needs."""
        if self.arrival not in ARRIVALS:
            raise FieldValueError("arrival", f"must be one of {', '.join(ARRIVALS)}")
        if (self.arrival == "open") != (self.rate is not None):
            raise FieldValueError("rate", "goes with arrival=open, and only with it")
        if self.arrival in ("ramp", "soak") and self.duration is None:
            raise FieldValueError("duration", f"is needed for arrival={self.arrival}")
        if self.arrival == "closed" and self.duration is not None:
            raise FieldValueError("duration", "has no meaning for arrival=closed")
        if self.prompt_min > self.prompt_max:
            raise FieldValueError("prompt_min", "must not be above prompt_max")

    def chance(self, *names: object) -> random.Random:
        """Return chance of a name: the same in every run, whatever else happens first."""
        return random.Random(":".join(map(str, (self.seed, *names))))  # noqa: S311 - it is no secret

    def conducts(self, session: int) -> Iterator[Conduct]:
        """Yield what a session does, turn by turn, without end."""
        chance, number = self.chance("session", session), 0
        while True:
            yield self._conduct(f"s{session}-t{number}", chance, first=number == 0)
            number += 1

    def is_followed(self, session: int) -> bool:
        """Return whether somebody else follows a session."""
        return self.chance("follow", session).random() < self.mix.subscribers

    def calm(self, session: int) -> Conduct:
        """Return the turn of a session with which a run that overloads its target ends."""
        tag = f"s{session}-calm"
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
    """Return words of about a size, with the tag at their head."""
    text = f"{tag} {TOOL_WORD}" if tool else tag
    while len(text) < size:
        text += f" {chance.choice(WORDS)}"
    return text


def plan_of(data: dict[str, Any]) -> LoadPlan:
    """Return a plan from what `attrs.asdict` made of it. Raises FieldValueError, TypeError."""
    parts = {"profile": Profile, "mix": Mix, "strangers": Strangers}
    return LoadPlan(**(data | {name: cls(**data.get(name, {})) for name, cls in parts.items()}))
