"""What is due to webhooks: one process at a time posts it, until the receiver takes it or all attempts have failed."""

import logging
import random
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.supervisor.supervisor import Supervisor
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.conversation.webhooks import Answer, Candidate, Post, Webhook, attempted, pause_of
from warren.storage.operations import EndAttempt, TakeDeliveries, TidyDeliveries

if TYPE_CHECKING:
    from warren.actors.tools.posting import Poster

PAUSE: Final = 1.0
"""Seconds until a store that has refused is asked again."""
TIDY: Final = 30.0
"""Seconds at least between two looks for deliveries beyond the bounds of their webhooks."""

logger: Final = logging.getLogger("warren.webhooks")


@define(eq=False, slots=False)
class DeliveryActor:
    """Attempts the deliveries of a runtime that are due, one task each.

    A delivery is taken for this process alone, and stays taken until the end of its attempt is stored, or the process
    is dead: then another one attempts it again, under the same id.
    """

    _supervisor: Supervisor
    _at_work: dict[str, Candidate] = attrs.field(factory=dict)
    _more: bool = False  # whether others are due, for which there was no room
    _untidy: bool = False

    async def run(self) -> None:
        """Attempt what is due, until cancelled. The watcher of the store tells of what others have left."""
        alarm, storage = self._supervisor.deliveries, self._supervisor.shared.storage
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tidy_loop)
            while True:
                await alarm.wait(storage.now)
                try:
                    taken = await storage.write(TakeDeliveries(dict(self._at_work)))
                except StoreError as exc:
                    logger.warning("what is due to webhooks cannot be read, and is asked for again: %s", exc)
                    await trio.sleep(PAUSE)
                    alarm.set(storage.now())
                    continue
                self._more = taken.more
                self._untidy = self._untidy or bool(taken.due)
                alarm.set(taken.following)
                for delivery, webhook in taken.due:
                    failing = webhook.failing_since is not None
                    of = delivery.delivery_id, webhook.webhook_id, webhook.tenant
                    self._at_work[delivery.delivery_id] = Candidate(*of, failing)
                    nursery.start_soon(self._deliver, delivery, webhook)

    async def _deliver(self, delivery: Post, webhook: Webhook) -> None:
        """Attempt a delivery once, and store what became of it; a store that refuses is asked until it takes it."""
        shared = self._supervisor.shared
        storage = shared.storage
        answer = await self._post(delivery, webhook)
        now = storage.now()
        ended = attempted(delivery, answer, now, random.random())  # noqa: S311 - no secret
        failed = answer.problem is not None
        end = EndAttempt(ended, now if failed else None, pause_of(webhook, answer, now) if failed else None)
        while True:
            try:
                await storage.write(end)
                break
            except WarrenError as exc:
                if not self._supervisor.stopping:
                    logger.warning("the end of delivery %s cannot be stored: %s", delivery.delivery_id, exc)
                await trio.sleep(PAUSE)
        shared.counters.deliveries["failed" if ended.state == "pending" else ended.state] += 1
        if end.pauses is not None:
            logger.warning("webhook %s is paused: %s", webhook.webhook_id, end.pauses)
        del self._at_work[delivery.delivery_id]
        self._supervisor.deliveries.set(storage.now() if self._more else ended.due)

    async def _post(self, delivery: Post, webhook: Webhook) -> Answer:
        now, body = self._supervisor.shared.storage.now(), delivery.body.encode()
        headers = {
            "content-type": "application/json",
            "user-agent": "warren",
        }
        try:
            headers |= webhook.headers(delivery.delivery_id, now, body)
            return await self._poster.post(webhook.url, headers, body)
        except Exception:  # nothing that a receiver does may end this actor
            logger.exception("delivery %s crashed", delivery.delivery_id)
            return Answer(problem="it crashed: see the log")

    @cached_property
    def _poster(self) -> "Poster":
        from warren.actors.tools.posting import poster  # noqa: PLC0415 - few programs have webhooks

        return poster(self._supervisor.shared.config.limits.webhook_allow)

    async def _tidy_loop(self) -> None:
        """Hold webhooks to their bounds while there are deliveries."""
        while True:
            await trio.sleep(TIDY)
            if self._untidy:
                self._untidy = False
                try:
                    dead = await self._supervisor.shared.storage.write(TidyDeliveries())
                except StoreError as exc:
                    self._untidy = True
                    logger.warning("deliveries could not be tidied: %s", exc)
                else:
                    self._supervisor.shared.counters.deliveries["dead"] += dead
