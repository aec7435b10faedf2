"""The surfaces of this suite: each is one adapter, whose one method translates an operation of the contract."""

import abc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import trio

from tests.parity.outcome import Outcome
from warren.base.errors import ErrorCode
from warren.conversation.events import Envelope
from warren.transport.rpc.methods import METHODS

if TYPE_CHECKING:
    from tests.parity.world import World

REPLAY: Final = "session/subscribe"
CREATE: Final = "session/create"
TURN: Final = "turn/start"
REGISTER: Final = "tools/register"
OPTIONS: Final = "options"
"""That a session or a turn can be given a budget, labels and the like."""
SAMPLING: Final = "sampling"
"""That a session or a turn can be given a temperature, top_p and an effort."""
COMPACTION_OPTIONS: Final = "compaction options"
"""That a session can be told how it is compacted."""
SWITCHES: Final = "switches"
"""That a session or a turn can be told which kinds of tools it has, and which of them ask."""
MODES: Final = "modes"
"""That a prompt may wait for another turn, under a key."""
PEERS: Final = "peers"
"""That a session can be given a name among others."""
STREAMS: Final = "streams"
"""That a turn is a stream, which a program iterates over."""
NO_CALLS: Final = {"initialize", "initialized", "session/unsubscribe", "session/watch", "session/unwatch"}
EVERYTHING: Final = frozenset(METHODS) - NO_CALLS | {OPTIONS, SAMPLING, COMPACTION_OPTIONS, SWITCHES, MODES, PEERS}


class UnsayableError(Exception):
    """The surface has no words for this: a tool that does not exist, an option that is not offered."""


class Client(abc.ABC):
    """One client of a surface. Its calls may run side by side where the surface lets them."""

    @abc.abstractmethod
    async def call(self, operation: str, /, **params: Any) -> Outcome:
        """Do an operation of the table of methods, with its parameters, good or bad.

        Raises UnsayableError where this surface cannot be told so.
        """

    @abc.abstractmethod
    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        """Follow a session from the log after one event to the one with the number `last`."""

    async def to_the_end(self, session_id: str, after_seq: int, following: trio.Event) -> Outcome:
        """Follow a session from the log after one event until it is said that there is no more.

        Sets `following` once that has begun.
        """
        raise UnsayableError(f"{session_id} cannot be followed from {after_seq}, {following}")

    async def streamed(self, operation: str, /, **params: Any) -> Outcome:
        """Run a turn as a stream that is read to its end: of a session, or of a new one."""
        raise UnsayableError(f"{operation} with {params} is no stream")

    async def first_turn(self, prompt: str, **options: Any) -> Outcome:
        """Begin a session with a turn; what comes back names the session."""
        return await self.call(CREATE, prompt=prompt, **options)

    async def asked(self) -> Mapping[str, Any]:
        """Return the next call of a tool that the client runs."""
        raise UnsayableError("nobody asks this client for anything")

    async def answer(self, call: Mapping[str, Any], result: object) -> None:
        """Answer a call of a tool."""
        raise UnsayableError(f"there are no words for the result of {call}: {result}")

    async def leave(self) -> None:
        """Go away in the middle of whatever there is."""
        raise UnsayableError("it stays")

    async def begun(self) -> None:
        """Return once the model has said something in a turn that this client has begun."""
        await self.world.model.said.wait()

    @property
    @abc.abstractmethod
    def world(self) -> "World":
        """The server that the client is connected to."""


class Surface(abc.ABC):
    """A way to the sessions.

    Attributes:
        name: for the names of tests.
        column: which numbers of the error table it uses; None has none.
        can: the operations that it has words for.
        unseen: fields of results, by operation, that it does not show.
        swallows: errors that are none on it, by contract.
        lists_archived: whether it can be asked for a list with archived sessions.
        lists_by_turn: whether it can be asked for sessions by the state of their turns.
        anywhere: whether it plays the scenarios alone that neither reach into the runtime nor are about processes.
        forks: whether its calls are processes.
        per_process: whether each call is a process of its own: without a store nothing of one is left for the next.
    """

    name: ClassVar[str]
    column: ClassVar[str | None]
    can: ClassVar[frozenset[str]] = EVERYTHING
    unseen: ClassVar[Mapping[str, frozenset[str]]] = {}
    swallows: ClassVar[frozenset[ErrorCode]] = frozenset()
    lists_archived: ClassVar[bool] = True
    lists_by_turn: ClassVar[bool] = True
    anywhere: ClassVar[bool] = False
    forks: ClassVar[bool] = False
    per_process: ClassVar[bool] = False

    @abc.abstractmethod
    def connect(self, world: "World", *, slow: bool = False) -> AbstractAsyncContextManager[Client]:
        """Connect a client; a slow one reads the first messages late and one by one."""

    def kinds(self, kinds: Sequence[str]) -> list[str]:
        """Return which of these types of events it shows."""
        return list(kinds)

    def shown(self, events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return these events as it shows them."""
        return list(events)

    def path(self, path: str | None) -> str | None:
        """Return what it calls a parameter."""
        return path


async def up_to(envelopes: AsyncIterator[Envelope], last: int) -> list[Envelope]:
    """Return envelopes up to the one with a number."""
    found: list[Envelope] = []
    if last:
        async for envelope in envelopes:
            found.append(envelope)
            if envelope.seq >= last:
                break
    return found
