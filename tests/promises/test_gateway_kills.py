"""The real gateway, killed at random and at every point that matters: what it acknowledged is there, whole, once."""

import os
import random
import time
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.promises.crash_world import World, served
from tests.promises.crashing_gateway import POINTS
from tests.support.postgres import database
from tests.transport.clients import HOST

LIVES: Final = 100
"""Lives of a gateway on a database in `make soak`."""
CREATING: Final = (
    "before a transaction:1",
    "after a transaction:1",
    "before an event is shown:2",
    "before a turn is told to have ended:1",
)
"""Points that the creation of a session passes."""


@pytest.mark.time_limit(120)
async def test_a_gateway_that_is_killed_a_few_times(tmp_path: Path) -> None:
    """After each of its lives every confirmed turn is there, numbers rise, and the next life goes on."""
    world = World(tmp_path, random.Random(7))  # noqa: S311 - it hides nothing
    while world.lives < 5 or world.acknowledged <= 5 or len(set(world.killed_at)) < 2:
        await world.live()


@pytest.mark.time_limit(120)
async def test_a_gateway_on_a_database_that_is_killed_a_few_times(tmp_path: Path) -> None:
    """The same promises hold for a store in PostgreSQL."""
    with database() as url:
        world = World(tmp_path, random.Random(7), url, longest=1.5)  # noqa: S311 - it hides nothing
        while world.lives < 3 or world.acknowledged <= 5 or len(set(world.killed_at)) < 2:
            await world.live()


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_a_gateway_on_a_database_that_is_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same for as long as asked, and until it was killed a hundred times and at every point."""
    seed = int.from_bytes(os.urandom(4))
    with database() as url:
        world = World(tmp_path, random.Random(seed), url, longest=1.5)  # noqa: S311 - it hides nothing
        end = time.monotonic() + soak_seconds
        try:
            while time.monotonic() < end or set(world.killed_at) != set(POINTS) or world.lives < LIVES:
                await world.live()
        except Exception as exc:
            exc.add_note(f"seed {seed}, life {world.lives}")
            raise


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_a_gateway_that_is_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same for as long as asked, with luck of its own, and until it was killed at every point."""
    seed = int.from_bytes(os.urandom(4))
    world = World(tmp_path, random.Random(seed))  # noqa: S311 - it hides nothing
    end = time.monotonic() + soak_seconds
    try:
        while time.monotonic() < end or set(world.killed_at) != set(POINTS):
            await world.live()
    except Exception as exc:
        exc.add_note(f"seed {seed}, life {world.lives}")
        raise


async def create(port: int, key: str) -> Any:
    """Ask for a session; return the answer, or None if the gateway died before it came."""
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http:
        try:
            answer = await http.post("/sessions", json={"prompt": f"hello {key}"}, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            return None
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.mark.time_limit(120)
async def test_one_key_creates_one_session(tmp_path: Path) -> None:
    """A request that is sent again after the gateway was killed has one session and one prompt, wherever it died."""
    died = []
    for point in CREATING:
        async with served(tmp_path, {"WARREN_CRASH": point}) as (process, port):
            assert port is not None
            died.append(await create(port, point))
            await process.wait()
    assert died == [None] * len(CREATING)
    async with served(tmp_path, {}) as (process, port):
        assert port is not None
        made = {point: await create(port, point) for point in CREATING}
        assert [await create(port, point) for point in CREATING] == list(made.values())
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http:
            listed = (await http.get("/sessions")).json()["sessions"]
            assert {row["session_id"] for row in listed} == {each["session_id"] for each in made.values()}
            for point, each in made.items():
                history = (await http.get(f"/sessions/{each['session_id']}/history")).json()["messages"]
                said = [row["message"]["content"] for row in history if row["message"]["role"] == "user"]
                assert said == [f"hello {point}"]
        process.terminate()
        await process.wait()
