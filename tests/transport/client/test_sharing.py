"""Subscriptions and turns of one session that meet on the connections of one client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.checks import numbers
from tests.support.fake_service import FakeService
from tests.support.waiting import until
from tests.transport.client.cable import Cable, cable
from tests.transport.clients import gateway
from warren.calls.base import Call
from warren.calls.turns import TurnCall
from warren.client import RemoteService, connect
from warren.conversation.events import Envelope
from warren.transport.client.readers import RemoteLog

R = TypeVar("R")


@attrs.define(eq=False)
class Door:
    """A door that holds the first caller up until it is opened, and lets all others through.

    Attributes:
        reached: set when the first caller is here.
        opened: set it to let the first caller through.
        passed: set when the first caller is through.
    """

    reached: trio.Event = attrs.field(factory=trio.Event)
    opened: trio.Event = attrs.field(factory=trio.Event)
    passed: trio.Event = attrs.field(factory=trio.Event)

    async def enter(self) -> None:
        """Go through."""
        if self.reached.is_set():
            await trio.lowlevel.checkpoint()
            return
        self.reached.set()
        await self.opened.wait()
        self.passed.set()


@attrs.define(eq=False)
class Waiting(FakeService):
    """A service whose first turn waits behind a door."""

    door: Door = attrs.field(factory=Door)

    async def perform(self, call: Call[R]) -> R:
        if isinstance(call, TurnCall):
            await self.door.enter()
        return await super().perform(call)


@asynccontextmanager
async def linked(service: FakeService) -> AsyncIterator[tuple[RemoteService, Cable]]:
    """A client of a service, by way of a cable."""
    async with gateway(service) as port, cable(port) as wire, connect(wire.url) as remote:
        yield remote, wire


@asynccontextmanager
async def held_up(service: FakeService, door: Door) -> AsyncIterator[tuple[RemoteService, RemoteLog, trio.Nursery]]:
    """A client with the log of a session from its beginning on, whose subscription waits behind a door."""
    async with linked(service) as (remote, _), trio.open_nursery() as tasks:
        log = await remote.follow("s1", after_seq=0)
        service.on_subscribe = door.enter
        log.move_on()
        yield remote, log, tasks


async def test_a_turn_beside_a_subscription_that_begins_is_heard_in_its_place() -> None:
    """The server takes its time with the subscription: the turn's events come once, and behind the older ones."""
    door, seen = Door(), list[Envelope]()
    service = FakeService(on_subscribe=door.enter)
    async with linked(service) as (remote, _), trio.open_nursery() as tasks:
        await remote.start_turn("s1", "one")

        async def follow() -> None:
            async with remote.subscribe("s1", after_seq=0) as reader:
                while not seen or seen[-1].seq < 6:
                    seen.append(await anext(reader))
                seen.extend(reader.take() or ())

        tasks.start_soon(follow)
        await door.reached.wait()
        assert (await remote.start_turn("s1", "two")).last_seq == 6
        door.opened.set()
    assert numbers(seen) == [1, 2, 3, 4, 5, 6]


async def test_a_turn_hears_nothing_of_another_one() -> None:
    """The turn waits at the server while another one of its session runs, whose events nobody wants."""
    service, heard = Waiting(), list[Envelope]()
    async with linked(service) as (remote, _), trio.open_nursery() as tasks:

        async def listen() -> None:
            await remote.start_turn("s1", "one", on_event=heard.append)

        tasks.start_soon(listen)
        await service.door.reached.wait()
        assert (await remote.start_turn("s1", "two")).last_seq == 3
        service.door.opened.set()
    assert numbers(heard) == [4, 5, 6]


@pytest.mark.time_limit(30)
@pytest.mark.parametrize("closes", [True, False])
async def test_a_subscription_that_is_given_up_while_it_begins_ends(*, closes: bool) -> None:
    """The reader is closed, or the call that connects it is cancelled: the server keeps no reader for it."""
    door, service, connecting = Door(), FakeService(), trio.CancelScope()
    async with held_up(service, door) as (_, log, tasks):

        async def load() -> None:
            with connecting:
                await log.reader.load()

        tasks.start_soon(load)
        await door.reached.wait()
        if closes:
            log.reader.close()
        else:
            connecting.cancel()
        await wait_all_tasks_blocked(0.05)  # the server has got what the client says to this
        door.opened.set()
        await door.passed.wait()
        await until(lambda: service.readers("s1") == 0)


async def test_a_reader_that_is_closed_while_it_waits_for_a_connection_subscribes_no_more() -> None:
    """The server comes back after the reader was closed, and is asked for nothing."""
    service = FakeService()
    async with linked(service) as (remote, wire):
        reader = (await remote.follow("s1", after_seq=0)).reader
        wire.closed = True
        wire.cut()
        await until(lambda: reader.take() is None)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(reader.load)
            await wait_all_tasks_blocked(0.01)
            reader.close()
            wire.closed = False
        assert len(service.called("subscribe")) == 1


async def test_a_reader_goes_on_if_the_caller_that_connects_it_is_given_up() -> None:
    """Another task asks for the number of the newest event, and subscribes for both: its end strands nobody."""
    door, service, asking, seen = Door(), FakeService(), trio.CancelScope(), list[Envelope]()
    async with held_up(service, door) as (remote, log, tasks):

        async def ask() -> None:
            with asking:
                await log.newest_there()

        async def read() -> None:
            while len(seen) < 3:
                seen.append(await anext(log.reader))

        tasks.start_soon(ask)
        await door.reached.wait()
        tasks.start_soon(read)
        await wait_all_tasks_blocked(0.01)
        asking.cancel()
        await remote.start_turn("s1", "one")
        with trio.fail_after(5):
            await until(lambda: len(seen) == 3)
        door.opened.set()
    assert numbers(seen) == [1, 2, 3]


async def test_a_caller_that_is_given_up_takes_no_later_subscription_along() -> None:
    """The place for which it has asked was given up before: the events of the next place come once."""
    door, service, asking = Door(), FakeService(), trio.CancelScope()
    async with held_up(service, door) as (remote, log, tasks):

        async def ask() -> None:
            with asking:
                await log.newest_there()

        tasks.start_soon(ask)
        await door.reached.wait()
        log.move_on()
        tasks.start_soon(log.reader.load)
        await wait_all_tasks_blocked(0.05)  # the second subscription has begun, or waits for the first one
        asking.cancel()
        await wait_all_tasks_blocked(0.05)
        seen = await log.reader.load()
        await remote.start_turn("s1", "one")
        while not seen or seen[-1].seq < 3:
            seen.append(await anext(log.reader))
        await wait_all_tasks_blocked(0.05)
        seen += log.reader.take() or []
        door.opened.set()
    assert numbers(seen) == [1, 2, 3]


async def test_the_number_of_the_newest_event_is_asked_for_behind_the_subscription() -> None:
    """Both are requests to subscribe: the server handles them at the same time, and one of them has no number."""
    door, service, found = Door(), FakeService(), list[int]()
    async with linked(service) as (remote, _), trio.open_nursery() as tasks:
        await remote.start_turn("s1", "one")
        log = await remote.follow("s1", after_seq=0)
        assert [(await anext(log.reader)).seq for _ in range(3)] == [1, 2, 3]
        service.on_subscribe = door.enter
        log.reader.cursor = 0
        assert log.reader.take() is None
        begun = len(service.called("subscribe"))

        async def ask() -> None:
            found.append(await log.newest_there())

        tasks.start_soon(log.connect)
        await door.reached.wait()
        tasks.start_soon(ask)
        await wait_all_tasks_blocked(0.05)
        assert len(service.called("subscribe")) == begun + 1
        door.opened.set()
        assert [(await anext(log.reader)).seq for _ in range(3)] == [1, 2, 3]
    assert found == [3]
