"""What a commit has to tell webhooks of: each home writes it as deliveries in the commit itself."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import attrs

from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.events import BudgetWarning, Envelope, RunCompleted, RunFailed
from warren.conversation.waits import Wait
from warren.conversation.webhooks import MAX_BODY_TEXT, Post, Webhook, WebhookEvent
from warren.storage.operations import Commit
from warren.storage.rows import in_background, webhook_in

logger: Final = logging.getLogger("warren.webhooks")
UNREAD: Final = -1
"""The number of webhooks that were not read yet; those of a store are not negative."""


@frozen
class Notice:
    """A delivery to write, due at once by the store's clock.

    Attributes:
        delivery: the delivery.
        wait: the wait of which it tells; one that the store has already was told of before.
    """

    delivery: Post
    wait: Wait | None = None


@define(eq=False)
class Hooks:
    """The webhooks of a store that are not paused, as this process knows them.

    The store has a number that is another one after each change of them. A commit reads it in its own transaction, so
    that this is exact: with another number it reads the webhooks anew.

    Attributes:
        number: the number of the store as the webhooks were read.
        noted: how many deliveries this process has written.
    """

    number: int | None = UNREAD
    noted: int = 0
    _of: Mapping[str, tuple[Webhook, ...]] = attrs.field(factory=dict)

    def read(self, number: int | None, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take the rows of `WEBHOOK` that are not paused; a damaged one is told of nothing."""
        found: dict[str, list[Webhook]] = {}
        for row in rows:
            try:
                webhook = webhook_in(row)
            except ValueError as exc:
                logger.warning("a webhook is damaged in the store, and is told of nothing: %s", exc)
                continue
            found.setdefault(webhook.tenant, []).append(webhook)
        self._of = {tenant: tuple(each) for tenant, each in found.items()}
        self.number = number

    def forget(self) -> None:
        """Read the webhooks anew at the next commit: the store may be another one."""
        self.number = UNREAD

    def notices(self, commit: Commit) -> list[Notice]:
        """Return the deliveries that a commit has to write."""
        webhooks = self._of.get(commit.record.tenant)
        return notices_of(commit, webhooks) if webhooks else []


def notices_of(commit: Commit, webhooks: Iterable[Webhook]) -> list[Notice]:
    """Return the deliveries to webhooks of its tenant that a commit has to write."""
    record = commit.record
    asked = [each for each in webhooks if each.wants(record.session_id, record.labels)]
    if not asked:
        return []
    found: list[Notice] = []
    for kind, seq, at, data, wait in _happened(commit):
        told = [each for each in asked if kind in each.events]
        if told:
            body = _body(commit, kind, seq, at, data)
            found += [Notice(_delivery(commit, each, kind, at, body), wait) for each in told]
    return found


def _happened(commit: Commit) -> Iterator[tuple[WebhookEvent, int, datetime, dict[str, Any], Wait | None]]:
    for item in commit.events:
        if not isinstance(item, Envelope):
            continue
        event, seq, at = item.event, item.seq, item.timestamp
        if isinstance(event, BudgetWarning):
            yield "budget.warning", seq, at, codec.to_data(event), None
        elif isinstance(event, RunCompleted):
            yield "turn.completed", seq, at, _result(event), None
        elif isinstance(event, RunFailed):
            kind: WebhookEvent = "turn.interrupted" if event.cause == "cancelled" else "turn.failed"
            yield kind, seq, at, {"error": event.error[:MAX_BODY_TEXT], "cause": event.cause}, None
    for wait in commit.waits:
        # Nobody can answer a call that waits for a child session or a peer but that one.
        if wait.state == "waiting" and wait.reason not in ("child", "peer") and not in_background(wait):
            yield "call.waiting", commit.record.last_seq, wait.since, _waiting(wait), wait


def _result(event: RunCompleted) -> dict[str, Any]:
    data: dict[str, Any] = {"result": event.result[:MAX_BODY_TEXT], "usage": codec.to_data(event.usage)}
    truncated = len(event.result) > MAX_BODY_TEXT
    if event.structured_output is not None:
        fits = len(codec.encode(event.structured_output)) <= MAX_BODY_TEXT
        data["structured_output"] = event.structured_output if fits else None
        truncated = truncated or not fits
    return {**data, "truncated": truncated}


def _waiting(wait: Wait) -> dict[str, Any]:
    fits = len(codec.encode(wait.args)) <= MAX_BODY_TEXT
    data = {
        "call_id": wait.wait_id,
        "name": wait.name,
        "reason": wait.reason,
        "args": dict(wait.args) if fits else None,
        "since": wait.since.isoformat(),
        "until": wait.until.isoformat(),
        "truncated": not fits,
    }
    return data if wait.question_of is None else {**data, "question_of": wait.question_of}


def _body(commit: Commit, kind: WebhookEvent, seq: int, at: datetime, data: dict[str, Any]) -> str:
    record = commit.record
    of = {"session_id": record.session_id, "title": record.title, "labels": dict(record.labels), "seq": seq}
    return codec.encode({"type": kind, "timestamp": at.isoformat(), "data": {**of, **data}}).decode()


def _delivery(commit: Commit, webhook: Webhook, kind: WebhookEvent, at: datetime, body: str) -> Post:
    return Post(
        delivery_id=f"msg_{uuid4().hex}",
        webhook_id=webhook.webhook_id,
        tenant=webhook.tenant,
        session_id=commit.session_id,
        type=kind,
        created_at=at,
        body=body,
    )
