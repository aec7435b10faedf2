"""The protocol of a connection: the methods that clients can call, and the messages that events become."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.base.values import frozen
from warren.calls.requests import SessionRef
from warren.conversation.events import Envelope, StreamTruncated
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.methods import METHODS, Method

EVENT: Final = "session/event"
UNSUBSCRIBED: Final = "session/unsubscribed"
CHANGED: Final = "session/changed"

logger: Final = logging.getLogger(__name__)


class Dialect(Protocol):
    """The protocol of one connection. The endpoint and the feeds are the same for all protocols."""

    @property
    def methods(self) -> Mapping[str, Method[Any, Any]]:
        """The methods that the client can call, by name."""
        ...

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the messages that report a subscription which ended without a request of the client. Never raises."""
        ...

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the messages that report an event, none or several. Never raises."""
        ...


@frozen
class Native:
    """Warren's own protocol: `docs/protocol.md` describes it."""

    methods: Mapping[str, Method[Any, Any]] = METHODS

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return one notification."""
        return (jsonrpc.notification(UNSUBSCRIBED, SessionRef(session_id)),)

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the event as one notification; if JSON cannot hold the event, report it as missing."""
        try:
            return (jsonrpc.event(EVENT, envelope),)
        except Exception:
            logger.exception("session %s: event %d cannot be encoded", envelope.session_id, envelope.seq)
            return (jsonrpc.event(EVENT, missing(envelope)),)


def missing(envelope: Envelope) -> Envelope:
    """Return the event that replaces one that cannot be sent: a StreamTruncated with its number."""
    before = (envelope.first_seq or envelope.seq) - 1
    marker = StreamTruncated(envelope.seq - before, before)
    return attrs.evolve(envelope, seq=before, event=marker, first_seq=None)
