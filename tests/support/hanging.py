"""A runtime that hangs for so long that others may take its sessions, and goes on."""

import time

import trio

from tests.support.faulty_store import FaultyStore
from tests.support.runtime import storage_of
from warren.actors.calls.service import Service
from warren.storage.sqlite import SqliteStore


async def store_of(service: Service) -> SqliteStore:
    """Return a runtime's store."""
    store = await storage_of(service).reader()
    assert isinstance(store, FaultyStore)
    assert isinstance(store.behind, SqliteStore)
    return store.behind


async def expire_leases(service: Service) -> None:
    """Let a runtime's leases run out, as where its process was stopped."""
    store = await store_of(service)
    store.me.clock = lambda: -1.0  # before all times in the store: no renewal of its own tells it
    await store.renew()


async def wake(service: Service) -> None:
    """Let a runtime that hung go on."""
    store = await store_of(service)
    store.me.clock = time.time
    await trio.sleep(10)
