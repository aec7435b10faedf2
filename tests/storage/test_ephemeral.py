"""The store in memory: for how long it holds the JSON of events that readers share."""

from datetime import UTC, datetime
from typing import Final

from tests.storage.samples import turn
from warren.conversation import codec
from warren.conversation.events import Envelope, TextComplete
from warren.storage.ephemeral.sessions import EphemeralSession

NOW: Final = datetime(2024, 5, 17, tzinfo=UTC)


def test_the_json_of_events_goes_with_the_next_commit() -> None:
    """The store keeps events for long: neither readers of the log nor readers of the store leave bytes in them."""
    session = EphemeralSession(turn("s").record)
    events = [Envelope("s", number, NOW, TextComplete("a" * number)) for number in range(1, 10)]
    for envelope in events:
        session.add_events((envelope,), 100)
        codec.encode_event(envelope)  # as for a reader that gets it behind the commit
    assert [each.seq for each in events if each.encoded is not None] == [9]
    rows = session.events_after(0, 100)
    assert [codec.decode_event(row.body) for row in rows] == [each.event for each in events]
    assert not any(each.encoded for each in events)
