"""Webhooks in each home: what a commit tells of is written with it, and taken by one process until it has an end."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.storage.conformance.homes import Home, done, forget
from tests.storage.samples import NOW, kept, step, turn, updated, wait
from warren.base.errors import CapacityExceededError, InvalidParamsError, SessionNotFoundError
from warren.conversation.events import BudgetWarning, Envelope, Event, RunCompleted, RunFailed
from warren.conversation.usage import NO_USAGE
from warren.conversation.webhooks import (
    KEPT_DEAD,
    KEPT_DELIVERED,
    MAX_BODY_TEXT,
    OF_WEBHOOK,
    Candidate,
    Post,
    Webhook,
)
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import FIRST as LEASE
from warren.storage.operations import (
    Archive,
    Commit,
    Delete,
    DropWebhook,
    EndAttempt,
    PutWebhook,
    Release,
    Resend,
    TakeDeliveries,
    TidyDeliveries,
)
from warren.storage.queries import DeliveryList, NextDelivery, PendingDeliveries, WebhookList, WebhookRow
from warren.storage.store import Store

LIMIT = 3
SECRET = f"whsec_{'a' * 43}="


def webhook(number: int = 0, **changes: Any) -> Webhook:
    """Return a webhook for all sessions of its tenant."""
    made = Webhook(f"hook-{number}", "default", "ann\0", NOW, "https://a.example/x", SECRET)
    return made.changed(**changes)


async def put(store: Store, *webhooks: Webhook) -> None:
    """Store webhooks."""
    for each in webhooks:
        assert await done(store, PutWebhook(each, LIMIT)) == each


def ended(session_id: str, number: int = 0, event: Event | None = None, **changes: Any) -> Commit:
    """Return the end of a turn, with the event that ends it."""
    whole = updated(turn(session_id, number), **changes)
    event = event or RunCompleted(session_id, "fine\0", NO_USAGE)
    at = whole.record.last_seq
    last = Envelope(session_id, at, whole.record.updated_at, event)
    base = None if number == 0 else (2 * number, at - 3)
    return attrs.evolve(whole, events=(*whole.events[:-1], last), base=base)


async def told(store: Store, webhook_id: str = "hook-0", tenant: str = "default") -> list[Post]:
    """Return the deliveries of a webhook, the oldest first."""
    return (await store.read(DeliveryList(tenant, webhook_id)))[::-1]


async def taken(store: Store, at_work: dict[str, Candidate] | None = None) -> list[str]:
    """Take what is due; return its sessions."""
    found = await done(store, TakeDeliveries(at_work or {}))
    return [delivery.session_id for delivery, _ in found.due]


async def test_a_webhook_is_stored_and_listed(home: Home, tmp_path: Path) -> None:
    """It comes back as it was, to its tenant alone, and in the order in which they were made."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        one, two = webhook(session_id="a", key="k"), webhook(1, paused=True, labels={"by": "x\0"}, problem="odd\0")
        other = webhook(2, tenant="other", old_secret=SECRET, old_until=NOW, failing_since=NOW)
        await put(store, one, two, other)
        assert await store.read(WebhookRow("default", "hook-0")) == one
        assert await store.read(WebhookRow("default", "hook-2")) is None
        assert await store.read(WebhookRow("other", "hook-2")) == other
        assert await store.read(WebhookList("default")) == [(one, 0, 0), (two, 0, 0)]
        assert await store.read(WebhookList("default", limit=1, offset=1)) == [(two, 0, 0)]
        assert await store.read(WebhookList("default", session_id="a")) == [(one, 0, 0)]
        assert await store.read(WebhookList("default", webhook_id="hook-1")) == [(two, 0, 0)]
        assert await done(store, PutWebhook(webhook(3, key="k"), LIMIT)) == one
        assert SECRET not in repr(one)


async def test_a_webhook_is_refused(home: Home, tmp_path: Path) -> None:
    """One for a session that is not there, one of too many, and a change of one that is not there."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, turn("old"))
        await done(store, Archive("old"))
        for unknown in ("b", "old"):
            with pytest.raises(SessionNotFoundError):
                await put(store, webhook(session_id=unknown))
        for changed in (webhook(), webhook(tenant="other")):
            with pytest.raises(InvalidParamsError, match="no webhook"):
                await done(store, PutWebhook(changed, LIMIT, replaces=True))
        await put(store, *map(webhook, range(LIMIT)))
        with pytest.raises(CapacityExceededError) as refused:
            await put(store, webhook(LIMIT))
        assert (refused.value.cause, refused.value.retryable) == ("tenant_webhooks", False)
        assert await done(store, DropWebhook("default", "hook-1"))
        assert not await done(store, DropWebhook("default", "hook-1"))


async def test_the_end_of_a_turn_is_told_with_its_commit(home: Home, tmp_path: Path) -> None:
    """Each webhook that wants it has one delivery, due at once, with what happened; a refused commit tells nothing."""
    async with home(tmp_path) as store:
        await done(store, ended("a", labels={"by": "x"}, title="T\0"))
        await put(store, webhook(), webhook(1, labels={"by": "x"}), webhook(2, labels={"by": "x", "of": "y"}))
        before = store.noted
        await done(store, ended("a", 1, labels={"by": "x"}, title="T\0"))
        assert store.noted > before
        (one,) = await told(store)
        (two,) = await told(store, "hook-1")
        assert one.delivery_id != two.delivery_id
        assert (one.type, one.session_id, one.state, one.attempts) == ("turn.completed", "a", "pending", 0)
        assert await told(store, "hook-2") == []
        assert await told(store, "hook-0", "other") == []
        body = json.loads(one.body)
        assert body == json.loads(two.body)
        assert (body["type"], body["timestamp"]) == ("turn.completed", "2026-03-01T12:01:00.123456+00:00")
        data = body["data"]
        assert (data["session_id"], data["seq"], data["title"], data["labels"]) == ("a", 6, "T\0", {"by": "x"})
        assert (data["result"], data["truncated"]) == ("fine\0", False)
        with pytest.raises(Exception, match="a"):
            await done(store, ended("a", 1))
        assert len(await told(store)) == 1
        await put(store, webhook(5, tenant="other"))
        await done(store, ended("b", tenant="other"))
        assert [each.session_id for each in await told(store, "hook-5", "other")] == ["b"]
        assert len(await told(store)) == 1


async def test_the_kinds_of_what_happens(home: Home, tmp_path: Path) -> None:
    """A webhook is told of the kinds that it asks for; a long result is cut."""
    async with home(tmp_path) as store:
        await put(store, webhook(), webhook(1, events=("budget.warning",)), webhook(2, paused=True))
        long = RunCompleted("a", "x" * (MAX_BODY_TEXT + 1), NO_USAGE, structured_output={"y": "z" * MAX_BODY_TEXT})
        events: list[Event] = [
            long,
            RunFailed("a", "stopped", "cancelled"),
            RunFailed("a", "broken", "provider_error"),
            BudgetWarning("tokens", 8, 10, 80.0),
        ]
        for number, event in enumerate(events):
            await done(store, ended("a", number, event))
        found = await told(store)
        assert [each.type for each in found] == ["turn.completed", "turn.interrupted", "turn.failed", "budget.warning"]
        data = [json.loads(each.body)["data"] for each in found]
        assert (len(data[0]["result"]), data[0]["structured_output"], data[0]["truncated"]) == (
            MAX_BODY_TEXT,
            None,
            True,
        )
        assert (data[2]["error"], data[2]["cause"]) == ("broken", "provider_error")
        assert (data[3]["budget_type"], data[3]["percent"]) == ("tokens", 80.0)
        assert [each.type for each in await told(store, "hook-1")] == ["budget.warning"]
        assert await told(store, "hook-2") == []


async def test_a_call_that_waits_is_told_once(home: Home, tmp_path: Path) -> None:
    """However often the wait is stored; one that begins anew is told anew, and one in the background is not told."""
    async with home(tmp_path) as store:
        await put(store, webhook())
        waiting = wait(0, args={"x": 1})
        begun = step("a", calls=(kept(0, "waiting"),))
        await done(store, attrs.evolve(begun, waits=(waiting, wait(1, "background"))))
        (one,) = await told(store)
        data = json.loads(one.body)["data"]
        assert (one.type, data["call_id"], data["reason"], data["args"]) == (
            "call.waiting",
            "call-0",
            "approval",
            {"x": 1},
        )
        again = attrs.evolve(begun, messages=(), events=(), base=(2, 3), settles=False)
        await done(store, attrs.evolve(again, waits=(waiting.changed(data={"n": 1}),)))
        assert await told(store) == [one]
        await done(store, attrs.evolve(again, waits=(waiting.changed(since=NOW + timedelta(seconds=1)),)))
        assert len(await told(store)) == 2


async def test_a_delivery_is_taken_until_it_has_ended(home: Home, tmp_path: Path) -> None:
    """One that is attempted takes up room; a webhook gets a few at once, and one that fails a single one."""
    async with home(tmp_path) as store:
        await put(store, webhook(), webhook(1))
        for number in range(OF_WEBHOOK + 2):
            await done(store, ended(f"s{number}"))
        assert await store.read(PendingDeliveries()) == 2 * (OF_WEBHOOK + 2)
        found = await done(store, TakeDeliveries({}))
        assert [hook.webhook_id for _, hook in found.due].count("hook-0") == OF_WEBHOOK
        assert found.more
        at_work = {
            each.delivery_id: Candidate(each.delivery_id, each.webhook_id, "default", False) for each, _ in found.due
        }
        assert await taken(store, at_work) == []
        first = found.due[0][0]
        later = store.now() + timedelta(hours=1)
        failed = first.changed(due=later, attempts=1, attempted_at=NOW, status=500, problem="no\0")
        await done(store, EndAttempt(failed, NOW))
        del at_work[first.delivery_id]
        assert (await told(store, first.webhook_id))[0] == failed
        hook = await store.read(WebhookRow("default", first.webhook_id))
        assert hook is not None
        assert hook.failing_since == NOW
        # That webhook fails now: nothing is begun for it while others of it are attempted.
        assert await taken(store, at_work) == []
        others = {name: each for name, each in at_work.items() if each.webhook_id != first.webhook_id}
        assert len(await taken(store, others)) == 1
        second = found.due[1][0]
        await done(store, EndAttempt(second.changed(state="delivered", due=None, status=200, body=""), None))
        hook = await store.read(WebhookRow("default", second.webhook_id))
        assert hook is not None
        assert hook.failing_since is None
        assert await store.read(NextDelivery()) is not None


async def test_a_dead_process_loses_what_it_attempts(home: Home, tmp_path: Path) -> None:
    """The next one takes it; the late note of the dead one changes nothing."""
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            return
        await put(store, webhook())
        await done(store, ended("a"))
        ((delivery, _),) = (await done(store, TakeDeliveries({}))).due
        forget(store)  # from here on it is another process
        delivered = delivery.changed(state="delivered", due=None, body="", status=200)
        await done(store, EndAttempt(delivered, None))
        assert await told(store) == [delivery]
        ((again, _),) = (await done(store, TakeDeliveries({}))).due
        assert again == delivery
        await done(store, EndAttempt(delivered, None))
        assert await told(store) == [delivered]
        assert await taken(store) == []


async def test_a_webhook_that_is_paused_waits(home: Home, tmp_path: Path) -> None:
    """Its deliveries are not taken, and it is told of nothing new; what is dead is sent again when somebody asks."""
    async with home(tmp_path) as store:
        await put(store, webhook())
        await done(store, ended("a"))
        ((delivery, _),) = (await done(store, TakeDeliveries({}))).due
        dead = delivery.changed(state="dead", due=None, attempts=1, status=410, problem="gone")
        await done(store, EndAttempt(dead, NOW, "gone"))
        hook = await store.read(WebhookRow("default", "hook-0"))
        assert hook is not None
        assert (hook.paused, hook.problem) == (True, "gone")
        await done(store, ended("b"))
        assert await told(store) == [dead]
        assert await store.read(WebhookList("default")) == [(hook, 0, 1)]
        assert await done(store, Resend("default", "hook-0", "other")) == 0
        assert await done(store, Resend("other", "hook-0")) == 0
        assert await done(store, Resend("default", "hook-0", delivery.delivery_id)) == 1
        assert await done(store, Resend("default", "hook-0")) == 0
        assert await taken(store) == []
        assert await store.read(NextDelivery()) is None
        await done(store, PutWebhook(webhook(), LIMIT, replaces=True))
        assert await taken(store) == ["a"]


async def test_a_webhook_keeps_so_many_deliveries(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest that wait are dead beyond its bound; of the dead and the delivered the newest are kept."""
    for module in ("sqlite.webhooks", "postgres.webhooks", "ephemeral.store"):
        monkeypatch.setattr(f"warren.storage.{module}.KEPT_PENDING", 2)
        monkeypatch.setattr(f"warren.storage.{module}.KEPT_DEAD", 3)
        monkeypatch.setattr(f"warren.storage.{module}.KEPT_DELIVERED", 1)
    assert min(KEPT_DEAD, KEPT_DELIVERED) > 3
    async with home(tmp_path) as store:
        await put(store, webhook())
        for number in range(7):
            await done(store, ended(f"s{number}"))
        assert await done(store, TidyDeliveries()) == 5
        assert await done(store, TidyDeliveries()) == 0
        found = await told(store)
        states = [(each.session_id, each.state) for each in found]
        assert states == [("s0", "pending"), ("s1", "pending"), ("s4", "dead"), ("s5", "dead"), ("s6", "dead")]
        assert found[-1].problem == "more deliveries wait than a webhook may have"
        for delivery, _ in (await done(store, TakeDeliveries({}))).due:
            await done(store, EndAttempt(delivery.changed(state="delivered", due=None, body=""), None))
        await done(store, TidyDeliveries())
        assert [each.session_id for each in await told(store) if each.state == "delivered"] == ["s1"]


async def test_what_is_removed_takes_its_deliveries_along(home: Home, tmp_path: Path) -> None:
    """A session takes the webhooks of its own, too, and the deliveries about it; a webhook takes its deliveries."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, webhook(), webhook(1, session_id="a"))
        await done(store, ended("a", 1))
        await done(store, ended("b"))
        assert [each.session_id for each in await told(store, "hook-1")] == ["a"]
        await done(store, Release("a", LEASE))
        await done(store, Delete("a"))
        assert [each.session_id for each in await told(store)] == ["b"]
        assert await told(store, "hook-1") == []
        assert [each.webhook_id for each, _, _ in await store.read(WebhookList("default"))] == ["hook-0"]
        await done(store, DropWebhook("default", "hook-0"))
        assert await told(store) == []
        await done(store, ended("b", 1))
        assert await store.read(PendingDeliveries()) == 0
