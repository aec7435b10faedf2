"""Processes are killed as turns end and as their ends are posted: each end is delivered, under one id."""

import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.promises.webhook_node import LIMITS
from tests.support.receiver import OK, Posted, Receiver, receiving
from tests.support.telling import running
from warren.calls.facade import SessionService
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_host

Place = Path | str


@asynccontextmanager
async def node(place: Place, turns: int = 0, dies: str = "never") -> AsyncIterator[tuple[trio.Process, Any]]:
    """Run a process that runs turns and posts."""
    command = [sys.executable, "-m", "tests.promises.webhook_node", str(place), str(turns), dies]
    async with running(command) as (process, telling):
        await telling.must()
        yield process, telling


@asynccontextmanager
async def looking(place: Place) -> AsyncIterator[SessionService]:
    """Open the store in this process, which posts nothing."""
    store = PostgresConfig(place, lease=2.0) if isinstance(place, str) else StoreConfig(place, lease=2.0)
    config = Config(store=store, model="echo", limits=LIMITS)
    async with open_host(config, environ={}, takes_up=False) as hosted:
        yield hosted.service


async def ended(place: Place) -> set[str]:
    """Return the sessions whose turn has ended in the store."""
    async with looking(place) as service:
        return {each.session_id for each in (await service.list(limit=1000)).sessions if each.message_count}


async def made(place: Place, receiver: Receiver) -> str:
    """Make a webhook; return its id."""
    async with looking(place) as service:
        return (await service.create_webhook(receiver.url)).webhook_id


async def delivered(place: Place, webhook_id: str) -> set[str]:
    """Return the sessions of which the store has delivered the end, once nothing is left to deliver."""
    async with looking(place) as service:
        while (await service.webhooks()).webhooks[0].pending:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.1)
        return {each.session_id for each in (await service.deliveries(webhook_id, limit=1000)).deliveries}


def ids(posted: list[Posted]) -> dict[str, set[str]]:
    """Return the ids under which the end of each session was posted."""
    found = defaultdict[str, set[str]](set)
    for each in posted:
        found[each.session_id].add(each.delivery_id)
    return found


async def test_a_process_is_killed_right_after_the_commit_of_an_end(place: Place) -> None:
    """The next one posts it: the row of the delivery was in the commit."""
    async with receiving() as receiver:
        webhook_id = await made(place, receiver)
        async with node(place, 1, "commit") as (process, _):
            await process.wait()
        assert receiver.posted == []
        sessions = await ended(place)
        assert len(sessions) == 1
        async with node(place):
            await receiver.got(1)
            assert await delivered(place, webhook_id) == sessions
        assert [each.session_id for each in receiver.posted] == list(sessions)


async def test_a_process_is_killed_between_the_answer_and_its_note(place: Place) -> None:
    """The next one posts it again, under the same id; after that it is posted no more."""
    async with receiving() as receiver:
        webhook_id = await made(place, receiver)
        async with node(place, 1, "note") as (process, _):
            await process.wait()
        assert len(receiver.posted) == 1
        async with node(place), node(place):
            await receiver.got(2)
            await delivered(place, webhook_id)
            await trio.sleep(3)
        first, second = receiver.posted
        assert first.delivery_id == second.delivery_id
        assert first.body == second.body


async def test_a_process_is_killed_during_an_attempt(place: Place) -> None:
    """Another node, which lives beside it, takes the delivery over, and not before its death."""
    silent = True

    async def answer(stream: trio.SocketStream, _posted: Posted) -> None:
        if silent:
            await trio.sleep_forever()
        await stream.send_all(OK)

    async with receiving(answer) as receiver:
        webhook_id = await made(place, receiver)
        async with node(place, 1) as (process, telling), node(place):
            await telling.must()
            await receiver.got(1)
            await trio.sleep(4)
            assert len(receiver.posted) == 1
            silent = False
            process.kill()
            with trio.fail_after(20):
                await receiver.got(2)
            await delivered(place, webhook_id)
        assert len(ids(receiver.posted).popitem()[1]) == 1


async def test_nodes_are_killed_while_turns_end(place: Place) -> None:
    """Each end that the store has was posted, under one id, and one that was posted twice had no note of it."""
    async with receiving() as receiver:
        webhook_id = await made(place, receiver)
        for pause in (0.05, 0.4):
            async with node(place, 200) as (first, _), node(place, 200) as (second, telling):
                await telling.must()
                await trio.sleep(pause)
                first.kill()
                await trio.sleep(0.1)
                second.kill()
        sessions = await ended(place)
        async with node(place):
            with trio.fail_after(60):
                while not sessions <= ids(receiver.posted).keys():  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.1)
            await delivered(place, webhook_id)
    found = ids(receiver.posted)
    assert found.keys() == sessions
    assert {len(each) for each in found.values()} == {1}
    again = Counter(each.delivery_id for each in receiver.posted).values()
    assert sum(count - 1 for count in again) <= 4 * 4  # what four processes attempted as they died
