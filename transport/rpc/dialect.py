"""The protocol of a connection: the methods that clients can call, and the messages that events become."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.base.values import frozen
from warren.calls.base import SessionRef
from warren.conversation.events import Envelope, StreamTruncated
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.methods import METHODS, Method

EVENT: Final = "session/event"
UNSUBSCRIBED: Final = "session/unsubscribed"
CHANGED: Final = "session/changed"


class Dialect(Protocol):
    """The protocol of one connection. The endpoint and the feeds are the same for all protocols."""

    @property
    def methods(self) -> Mapping[str, Method[Any, Any]]:
        """The methods that the client can call, by name."""

    @property
    def frames(self) -> Callable[[Envelope], Sequence[bytes]] | None:
        """Makes the messages that report an event, none or several, and never raises.

        None if each event is one notification with its envelope, whose bytes all connections share.
        """

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the messages that report a subscription which ended without a request of the client. Never raises."""


@frozen
class Native:
    """Warren's own protocol: `docs/protocol.md` describes it."""

    methods: Mapping[str, Method[Any, Any]] = METHODS
    frames: None = None

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return one notification."""
        return (jsonrpc.notification(UNSUBSCRIBED, SessionRef(session_id)),)


def missing(envelope: Envelope) -> Envelope:
    """Return the event that replaces one that cannot be sent: a StreamTruncated with its number."""
    before = (envelope.first_seq or envelope.seq) - 1
    marker = StreamTruncated(envelope.seq - before, before)
    return attrs.evolve(envelope, seq=before, event=marker, first_seq=None)
