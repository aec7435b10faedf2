"""What is due by a schedule: its prompt goes into the inbox of its session, or of a new session."""

import logging
from datetime import datetime
from typing import Final

import attrs
import trio

from warren.actors.calls.delivering import deliver
from warren.actors.calls.local import Local
from warren.base.errors import SessionNotFoundError, StoreError, WarrenError
from warren.base.values import define
from warren.conversation.schedules import GRACE, Run, firing_of
from warren.storage.operations import Advance, DueSchedule, TakeDue
from warren.storage.rows import key_of

MOST: Final = 100
"""Schedules that a process deals with at once."""
SHORTEST: Final = 0.02
"""Seconds at least between two looks for what is due: one finds what has become due meanwhile."""
PAUSE: Final = 1.0
"""Seconds until a store, or a session, that has refused a prompt is asked again."""

logger: Final = logging.getLogger("warren.schedules")


@define(eq=False)
class ScheduleActor:
    """Deals with the schedules of a runtime that are due, one task each.

    A schedule is taken for this process alone, and stays taken until it has advanced or the process is dead. Each run
    has a key that follows from its time, so that a run which a dead process has begun happens once all the same.
    """

    _local: Local
    _at_work: set[str] = attrs.field(factory=set)

    async def run(self) -> None:
        """Deal with what is due, until cancelled. The watcher of the store tells of what others have left."""
        alarm, storage = self._local.supervisor.alarm, self._local.supervisor.shared.storage
        async with trio.open_nursery() as nursery:
            while True:
                await alarm.wait(storage.now)
                if storage.node is not None and storage.node.draining:
                    continue  # the other nodes deal with it
                room = MOST - len(self._at_work)
                if not room:
                    continue  # one of those at work looks again
                try:
                    taken = await storage.write(TakeDue(room, tuple(self._at_work)))
                except StoreError as exc:
                    logger.warning("what is due cannot be read, and is asked for again: %s", exc)
                    await trio.sleep(PAUSE)
                    alarm.set(storage.now())
                    continue
                alarm.set(taken.following)
                for each in taken.due:
                    self._at_work.add(each.schedule.schedule_id)
                    nursery.start_soon(self._deal_with, each)
                await trio.sleep(SHORTEST)

    async def _deal_with(self, found: DueSchedule) -> None:
        """Deal with a schedule that is due; after a moment once more if it could not be dealt with."""
        supervisor = self._local.supervisor
        full = len(self._at_work) >= MOST
        try:
            following = await self._advance(found)
        except WarrenError as exc:
            if not supervisor.stopping:
                logger.warning("schedule %s is due, and tried again: %s", found.schedule.schedule_id, exc)
            await trio.sleep(PAUSE)
            following = supervisor.shared.storage.now()
        self._at_work.discard(found.schedule.schedule_id)
        supervisor.alarm.set(supervisor.shared.storage.now() if full else following)

    async def _advance(self, found: DueSchedule) -> datetime | None:
        """Fire a schedule that is due, or leave the run out; return the time at which it is due next.

        Raises WarrenError if it is to be tried again.
        """
        schedule, storage = found.schedule, self._local.supervisor.shared.storage
        now = storage.now()
        due = schedule.due or now
        firing, problem = firing_of(schedule, due, now), None
        following = firing.following
        if not firing.fires:
            run = Run(due, "missed", now)
        elif found.busy and schedule.overlap == "skip":
            run = Run(due, "skipped", now)
        else:
            try:
                session_id = await deliver(self._local, schedule, schedule.prompt, key_of(schedule.schedule_id, due))
                run = Run(due, "fired", storage.now(), session_id)
            except SessionNotFoundError as exc:  # it is archived, or was deleted a moment ago
                run, following, problem = Run(due, "failed", now, schedule.session_id, exc.message), None, exc.message
            except WarrenError as exc:
                if exc.retryable and now < due + GRACE:
                    raise
                run = Run(due, "failed", now, schedule.session_id, exc.message)
            except Exception:  # the host's code, which makes tools and compactors of a new session, may raise anything
                logger.exception("schedule %s could not be fired", schedule.schedule_id)
                run = Run(due, "failed", now, schedule.session_id, "it crashed: see the log")
        await storage.write(Advance(schedule.schedule_id, run, following, problem))
        return following
