"""How a client is spoken to: which methods it finds, and what it is sent for an event."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.events import Envelope, StreamTruncated
from warren.requests import SessionRef
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.methods import METHODS, Method

EVENT: Final = "session/event"
UNSUBSCRIBED: Final = "session/unsubscribed"

logger: Final = logging.getLogger(__name__)


class Dialect(Protocol):
    """The protocol of one connection. The machinery under it is the same for all."""

    @property
    def methods(self) -> Mapping[str, Method[Any, Any]]:
        """What the client can call, by name."""
        ...

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the messages that tell of a subscription's end which the client has not asked for. Never raises."""
        ...

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the messages that tell of an event, none or several. Never raises."""
        ...


@attrs.frozen
class Native:
    """Our own protocol, as `docs/protocol.md` has it."""

    methods: Mapping[str, Method[Any, Any]] = METHODS

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return one notification."""
        return (jsonrpc.notification(UNSUBSCRIBED, SessionRef(session_id)),)

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the event as one notification; one that JSON cannot hold is reported missing."""
        try:
            return (jsonrpc.notification(EVENT, envelope),)
        except Exception:
            logger.exception("session %s: event %d cannot be sent", envelope.session_id, envelope.seq)
            return (jsonrpc.notification(EVENT, missing(envelope)),)


def missing(envelope: Envelope) -> Envelope:
    """Return what tells a client that it does not get an event."""
    before = (envelope.first_seq or envelope.seq) - 1
    marker = StreamTruncated(envelope.seq - before, before)
    return attrs.evolve(envelope, seq=before, event=marker, first_seq=None)
