"""Renewals of leases that are held up: they wait for no group of their own process, and count as late if they are."""

import psycopg
import trio

from tests.storage.conformance.faults import postgres_opened
from tests.storage.conformance.homes import done
from tests.storage.samples import turn
from tests.support.postgres import database
from warren.storage.operations import Claim, Claimed
from warren.storage.queries import ANY_TENANT, SessionHolder


async def test_a_renewal_does_not_wait_for_a_group() -> None:
    """A group that waits, as for the row of a session, has the lock of its process's writer."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lock_timeout=20.0, lease=60.0) as store:
            await done(store, turn("a"))
            with psycopg.connect(url) as group:
                group.execute("UPDATE warren.writers SET groups = groups WHERE holder = %s", (store.key,))
                with trio.fail_after(5):
                    await store.renew()
        assert store.lapses == 0


async def test_a_renewal_that_others_saw_too_late_is_a_lapse() -> None:
    """It began in time, and its row was changed after the leases had run out: another process has a session then."""
    with database() as url:
        async with (
            postgres_opened(url, timeout=20.0, lock_timeout=20.0, lease=1.5) as store,
            postgres_opened(url, timeout=20.0, lock_timeout=20.0, lease=60.0) as other,
        ):
            await done(other, turn("b"))
            await done(store, turn("a"))
            await store.renew()
            with psycopg.connect(url) as slow:
                slow.execute("SELECT FROM warren.holders WHERE key = %s FOR UPDATE", (store.key,))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.renew)
                    while await other.read(SessionHolder("a", ANY_TENANT)) is not None:  # noqa: ASYNC110 - another process has no event
                        await trio.sleep(0.05)
                    assert isinstance(await done(other, Claim("a")), Claimed)
                    slow.commit()
            assert store.lapses == 1
