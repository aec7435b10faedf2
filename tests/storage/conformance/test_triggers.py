"""Triggers in each home: with what became of their deliveries, each of which is kept once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conformance.homes import DONE, Home, done
from tests.storage.samples import NOW, turn
from warren.base.errors import CapacityExceededError, InvalidParamsError, SessionNotFoundError
from warren.conversation.inputs import Input
from warren.conversation.triggers import KEPT_DELIVERIES, Delivery, Trigger, key_of
from warren.storage.operations import (
    UNKNOWN,
    Archive,
    Delete,
    DropTrigger,
    EndInputs,
    Enqueue,
    InputOutcome,
    KeepDelivery,
    PutTrigger,
)
from warren.storage.queries import ANY_TENANT, DeliveryOf, TriggerList, TriggerRow
from warren.storage.store import Store

LIMIT = 3
PAST = datetime(2020, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def trigger(number: int = 0, **changes: Any) -> Trigger:
    """Return a trigger."""
    made = Trigger(f"trigger-{number}", "default", "ann", NOW, "look at {body}\0", f"secret-{number}\0")
    return made.changed(**changes)


async def put(store: Store, *triggers: Trigger) -> None:
    """Store triggers."""
    for each in triggers:
        assert await done(store, PutTrigger(each, LIMIT)) == each


async def listed(store: Store, **query: Any) -> list[tuple[Trigger, list[tuple[Delivery, bytes | None]]]]:
    """Return the triggers of the tenant, with their deliveries."""
    return [(each, list(deliveries)) for each, deliveries in await store.read(TriggerList("default", **query))]


async def test_a_trigger_is_stored_and_listed(home: Home, tmp_path: Path) -> None:
    """It comes back as it was, to its tenant alone, and in the order in which they were made."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        one, two = trigger(session_id="a", key="k"), trigger(1, paused=True, problem="odd\0", scheme="github")
        other = trigger(2, tenant="other")
        await put(store, one, two, other)
        assert await store.read(TriggerRow("default", "trigger-0")) == one
        assert await store.read(TriggerRow("default", "trigger-2")) is None
        assert await store.read(TriggerRow(ANY_TENANT, "trigger-2")) == other
        assert await store.read(TriggerRow(ANY_TENANT, "trigger-3")) is None
        assert await listed(store) == [(one, []), (two, [])]
        assert await listed(store, limit=1, offset=1) == [(two, [])]
        assert await listed(store, session_id="a") == [(one, [])]
        assert await listed(store, trigger_id="trigger-1") == [(two, [])]
        assert await done(store, PutTrigger(trigger(3, key="k"), LIMIT)) == one


async def test_a_trigger_is_refused(home: Home, tmp_path: Path) -> None:
    """One for a session that is not there, one of too many, and a change of one that is not there."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, turn("old"))
        await done(store, Archive("old"))
        for unknown in ("b", "old"):
            with pytest.raises(SessionNotFoundError):
                await put(store, trigger(session_id=unknown))
        with pytest.raises(SessionNotFoundError):
            await put(store, trigger(session_id="a", tenant="other"))
        for changed in (trigger(), trigger(tenant="other")):
            with pytest.raises(InvalidParamsError, match="no trigger"):
                await done(store, PutTrigger(changed, LIMIT, replaces=True))
        await put(store, *map(trigger, range(LIMIT)))
        with pytest.raises(CapacityExceededError) as refused:
            await put(store, trigger(LIMIT))
        assert (refused.value.cause, refused.value.retryable) == ("tenant_triggers", False)
        changed = trigger(1, prompt="other", secret="new\0")  # noqa: S106 - it is none
        assert await done(store, PutTrigger(changed, LIMIT, replaces=True)) == changed
        assert await store.read(TriggerRow("default", "trigger-1")) == changed


async def test_the_newest_deliveries_are_kept_once(home: Home, tmp_path: Path) -> None:
    """The same one again changes nothing once it has fired; the oldest are forgotten."""
    async with home(tmp_path) as store:
        await put(store, trigger(), trigger(1))
        ids = [f"msg-{number}\0" for number in range(KEPT_DELIVERIES + 2)]
        for number, each in enumerate(ids):
            delivery = Delivery(each, "failed", PAST + number * MINUTE, problem="x\0")
            await done(store, KeepDelivery("trigger-0", delivery))
        ((found, deliveries), (_, none)) = await listed(store)
        assert (found.problem, none) == (None, [])
        assert [each.delivery_id for each, _ in deliveries] == ids[: -KEPT_DELIVERIES - 1 : -1]
        assert deliveries[0][0].problem == "x\0"
        fired = Delivery(ids[-1], "fired", NOW, "gone")
        await done(store, KeepDelivery("trigger-0", fired, "it is archived"))
        await done(store, KeepDelivery("trigger-0", Delivery(ids[-1], "skipped", NOW + MINUTE)))
        await done(store, KeepDelivery("nobody", fired))
        ((found, deliveries), _) = await listed(store)
        assert (found.problem, found.state, len(deliveries)) == ("it is archived", "ended", KEPT_DELIVERIES)
        assert deliveries[0] == (fired, None)
        assert await store.read(DeliveryOf("default", "trigger-0", ids[-1])) == (fired, False)
        assert await store.read(DeliveryOf("default", "trigger-0", ids[0])) == (None, False)
        assert await store.read(DeliveryOf("other", "trigger-0", ids[-1])) == (None, False)
        assert await store.read(DeliveryOf("default", "trigger-1", ids[-1])) == (None, False)


async def test_a_delivery_is_busy_until_its_turn_has_ended(home: Home, tmp_path: Path) -> None:
    """From the moment in which its prompt waits; one is never busy with itself."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, trigger(session_id="a", overlap="skip"))
        await done(store, KeepDelivery("trigger-0", Delivery("one\0", "fired", NOW, "a")))
        known, busy = await store.read(DeliveryOf("default", "trigger-0", "two"))
        assert (known, busy) == (None, False)
        said = Input("id", "queue", "look", NOW, key_of("trigger-0", "one\0"))
        numbered = (await done(store, Enqueue("a", said, 9))).numbered
        assert await store.read(DeliveryOf("default", "trigger-0", "two")) == (None, True)
        assert (await store.read(DeliveryOf("default", "trigger-0", "one\0")))[1] is False
        await done(store, EndInputs("a", InputOutcome((numbered.number,), UNKNOWN)))
        ((_, deliveries),) = await listed(store)
        assert deliveries[0][1] == UNKNOWN
        await done(store, EndInputs("a", InputOutcome((numbered.number,), DONE)))
        ((_, deliveries),) = await listed(store)
        assert deliveries[0][1] == DONE
        assert await store.read(DeliveryOf("default", "trigger-0", "two")) == (None, False)


async def test_a_trigger_goes(home: Home, tmp_path: Path) -> None:
    """By itself, for its tenant alone, and with its session."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, trigger(), trigger(1, session_id="a"), trigger(2))
        await done(store, KeepDelivery("trigger-1", Delivery("one", "fired", NOW, "a")))
        assert not await done(store, DropTrigger("other", "trigger-0"))
        assert await done(store, DropTrigger("default", "trigger-0"))
        assert not await done(store, DropTrigger("default", "trigger-0"))
        await done(store, Delete("a"))
        assert [each.trigger_id for each, _ in await listed(store)] == ["trigger-2"]
