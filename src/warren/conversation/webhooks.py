"""Webhooks: addresses to which what happens in sessions is posted, signed as Standard Webhooks says. No I/O."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.fields import FieldValueError, is_text
from warren.base.signatures import SIGNATURE, BadSecretError, check_secret, signed_headers
from warren.base.values import frozen, value
from warren.conversation.views import DamagedRow

WebhookEvent = Literal["turn.completed", "turn.failed", "turn.interrupted", "call.waiting", "budget.warning"]
"""What a webhook can be told of: the ends of turns, a call that waits for somebody, and a budget that runs low."""
WEBHOOK_EVENTS: Final[tuple[WebhookEvent, ...]] = get_args(WebhookEvent)
PostState = Literal["pending", "delivered", "dead"]
POST_STATES: Final[tuple[PostState, ...]] = get_args(PostState)
MAX_WEBHOOK_URL: Final = 2048
OVERLAP: Final = timedelta(hours=24)
"""The time for which the secret before signs too, once there is a new one."""
FAILS_FOR: Final = timedelta(days=5)
"""The time after which a webhook is paused whose deliveries have all failed."""
KEPT_PENDING: Final = 5_000
"""Deliveries of a webhook that may wait; the newest ones beyond them are dead at once."""
KEPT_DEAD: Final = 500
"""Dead deliveries that are kept of a webhook, the newest ones."""
KEPT_DELIVERED: Final = 50
"""Delivered ones that are kept of a webhook, without their bodies, the newest ones."""
MAX_BODY_TEXT: Final = 20_000
"""Characters of a result, and of the JSON of other values, that a body has at most."""
_HOUR: Final = 3600.0
BACKOFF: Final = (5.0, 300.0, 1800.0, *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24)))
"""Seconds from one attempt to the next; after the last of them the delivery is dead."""
LONGEST_PAUSE: Final = 24 * _HOUR
"""Seconds at most for which a receiver can put the next attempt off."""
JITTER: Final = 0.1
"""The part of a pause by which it may be longer, so that what failed together is not tried again together."""


def is_secret(_instance: object, attribute: "attrs.Attribute[Any]", given: Any) -> None:
    """Refuse texts that are no secret of a webhook; the error does not repeat them."""
    is_text(_instance, attribute, given)
    try:
        check_secret(given)
    except BadSecretError as exc:
        raise FieldValueError(attribute.name, str(exc)) from None


@value
class Webhook:
    """An address to which what happens in sessions is posted.

    Attributes:
        webhook_id: the id.
        tenant: the tenant that it belongs to.
        owner: the name of the principal that made it.
        created_at: the time at which it was made (UTC).
        url: the address.
        secret: the secret that signs.
        events: what it is told of.
        session_id: the one session of which it is told; None for those with the labels.
        labels: the labels that a session has to have, all of them.
        paused: whether it is told of nothing, until it is changed.
        old_secret: the secret before, which signs too for a while.
        old_until: the time until which it does (UTC).
        key: the idempotency key under which it was made.
        failing_since: the time since which no delivery has succeeded (UTC); None if the newest one has.
        problem: the reason why Warren has paused it.
    """

    webhook_id: str
    tenant: str
    owner: str
    created_at: datetime
    url: str
    secret: str = attrs.field(repr=False)
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    session_id: str | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    paused: bool = False
    old_secret: str | None = attrs.field(default=None, repr=False)
    old_until: datetime | None = None
    key: str | None = None
    failing_since: datetime | None = None
    problem: str | None = None

    def wants(self, session_id: str, labels: Mapping[str, str]) -> bool:
        """Return whether it is told of a session of its tenant."""
        if self.session_id is not None:
            return self.session_id == session_id
        return all(labels.get(name) == each for name, each in self.labels.items())

    def headers(self, delivery_id: str, now: datetime, body: bytes) -> dict[str, str]:
        """Return the headers that sign a body, sent at a time (UTC); two secrets sign while one takes over."""
        headers = signed_headers(self.secret, delivery_id, now, body)
        if self.old_secret is not None and self.old_until is not None and now < self.old_until:
            headers[SIGNATURE] += f" {signed_headers(self.old_secret, delivery_id, now, body)[SIGNATURE]}"
        return headers

    def changed(self, **changes: Any) -> "Webhook":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)


@value
class Post:
    """One message to a webhook, on its way.

    Attributes:
        delivery_id: the id, which stays the same in all attempts.
        webhook_id: the webhook.
        tenant: the tenant.
        session_id: the session.
        type: what happened.
        created_at: the time at which it happened (UTC).
        state: whether an attempt is to come, one has succeeded, or none is to come.
        due: the time of the next attempt (UTC); None if none is to come.
        attempts: the attempts so far.
        attempted_at: the time of the newest attempt (UTC).
        status: the HTTP status that the receiver has answered to it; None if it gave none.
        problem: the reason why the newest attempt failed, or why there was none.
        body: the JSON that is posted; empty once it was delivered.
    """

    delivery_id: str
    webhook_id: str
    tenant: str
    session_id: str
    type: WebhookEvent
    created_at: datetime
    state: PostState = "pending"
    due: datetime | None = None
    attempts: int = 0
    attempted_at: datetime | None = None
    status: int | None = None
    problem: str | None = None
    body: str = attrs.field(default="", repr=False)

    def changed(self, **changes: Any) -> "Post":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)


@frozen
class Answer:
    """What became of an attempt.

    Attributes:
        status: the HTTP status; None if there was no answer.
        problem: the reason why it failed; None if it succeeded.
        retry_after: seconds for which the receiver asks not to be tried again.
    """

    status: int | None = None
    problem: str | None = None
    retry_after: float | None = None


GONE: Final = 410
"""The status by which a receiver says that it wants nothing more."""


def attempted(delivery: Post, answer: Answer, now: datetime, jitter: float) -> Post:
    """Return a delivery after an attempt.

    Args:
        delivery: the delivery as it was taken.
        answer: what became of the attempt.
        now: the time (UTC).
        jitter: a random number from 0 to 1.
    """
    made = delivery.attempts + 1
    told = {"attempts": made, "attempted_at": now, "status": answer.status, "problem": answer.problem}
    if answer.problem is None:
        return delivery.changed(state="delivered", due=None, body="", **told)
    if answer.status == GONE or made > len(BACKOFF):
        return delivery.changed(state="dead", due=None, **told)
    pause = BACKOFF[made - 1] * (1 + JITTER * jitter)
    if answer.retry_after is not None:
        pause = min(max(pause, answer.retry_after), LONGEST_PAUSE)
    return delivery.changed(due=now + timedelta(seconds=pause), **told)


def pause_of(webhook: Webhook, answer: Answer, now: datetime) -> str | None:
    """Return the reason why a webhook is to be paused after an attempt that failed; None if it goes on."""
    if answer.status == GONE:
        return "the receiver answered 410: it is gone"
    if webhook.failing_since is not None and now - webhook.failing_since >= FAILS_FOR:
        return f"all deliveries have failed for {FAILS_FOR.days} days"
    return None


@frozen
class Candidate:
    """A delivery that is due, as a process chooses from among them.

    Attributes:
        delivery_id: its id.
        webhook_id: its webhook.
        tenant: its tenant.
        failing: whether the newest delivery of the webhook has failed.
    """

    delivery_id: str
    webhook_id: str
    tenant: str
    failing: bool


AT_ONCE: Final = 100
"""Deliveries that a process attempts at once."""
OF_TENANT: Final = 50
"""Deliveries of one tenant among them, and those to webhooks that fail."""
OF_WEBHOOK: Final = 4
"""Deliveries to one webhook among them; 1 if it fails."""


def choose(found: Sequence[Candidate], at_work: Mapping[str, Candidate]) -> tuple[list[Candidate], bool]:
    """Return the deliveries to begin now, and whether more are due: a receiver that hangs holds up none but itself.

    Args:
        found: deliveries that are due, the oldest first.
        at_work: those that are attempted now, by their ids.
    """
    chosen: list[Candidate] = []
    busy = list(at_work.values())
    more = False
    for each in found:
        if each.delivery_id in at_work:
            continue
        of_webhook = sum(other.webhook_id == each.webhook_id for other in busy)
        full = len(busy) >= AT_ONCE or sum(other.tenant == each.tenant for other in busy) >= OF_TENANT
        if each.failing:
            full = full or of_webhook >= 1 or sum(other.failing for other in busy) >= OF_TENANT
        if full or of_webhook >= OF_WEBHOOK:
            more = True
            continue
        busy.append(each)
        chosen.append(each)
    return chosen, more


@value
class WebhookView:
    """A webhook as callers see it.

    Attributes:
        webhook_id: the id.
        state: `active` or `paused`.
        url: the address.
        events: what it is told of.
        session_id: the one session of which it is told; null for those with the labels.
        labels: the labels that a session has to have.
        created_at: the time at which it was made (UTC).
        owner: the name of the principal that made it.
        pending: its deliveries that wait for an attempt.
        dead: its deliveries that have failed for good, as far as they are kept.
        failing_since: the time since which no delivery has succeeded (UTC); null if the newest one has.
        problem: the reason why Warren has paused it.
        secret: the secret, in the answer to the request that made it alone.
    """

    webhook_id: str
    state: Literal["active", "paused"]
    url: str
    events: tuple[WebhookEvent, ...]
    session_id: str | None
    labels: Mapping[str, str]
    created_at: datetime
    owner: str
    pending: int = 0
    dead: int = 0
    failing_since: datetime | None = None
    problem: str | None = None
    secret: str | None = attrs.field(default=None, repr=False)


@value
class WebhookPage:
    """A page of webhooks.

    Attributes:
        webhooks: the page.
        damaged: damaged rows of the page; they are missing in `webhooks`.
    """

    webhooks: tuple[WebhookView, ...]
    damaged: tuple[DamagedRow, ...] = ()


@value
class WebhookDelivery:
    """A delivery as callers see it.

    Attributes:
        delivery_id: the id, which the receiver gets as `webhook-id`.
        webhook_id: the webhook.
        session_id: the session.
        type: what happened.
        created_at: the time at which it happened (UTC).
        state: `pending`, `delivered` or `dead`.
        attempts: the attempts so far.
        attempted_at: the time of the newest attempt (UTC).
        status: the HTTP status that the receiver has answered to it; null if it gave none.
        problem: the reason why the newest attempt failed, or why there was none.
        next_at: the time of the next attempt (UTC); null if none is to come.
    """

    delivery_id: str
    webhook_id: str
    session_id: str
    type: WebhookEvent
    created_at: datetime
    state: PostState
    attempts: int
    attempted_at: datetime | None = None
    status: int | None = None
    problem: str | None = None
    next_at: datetime | None = None


@value
class WebhookDeliveryPage:
    """A page of deliveries.

    Attributes:
        deliveries: the page, the newest first.
        damaged: damaged rows of the page; they are missing in `deliveries`.
    """

    deliveries: tuple[WebhookDelivery, ...]
    damaged: tuple[DamagedRow, ...] = ()
