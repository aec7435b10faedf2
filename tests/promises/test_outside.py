"""A gateway is killed while a tool call of it waits for a result from outside; the next one takes it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.promises.later_server import CREDENTIAL
from tests.support.telling import Telling, running
from tests.transport.rest.clients import client


@attrs.define
class Server:
    """A gateway in a process of its own, and a service outside that knows its address alone."""

    process: trio.Process
    telling: Telling
    outside: httpx.AsyncClient

    async def give(self, token: str, result: Any) -> int:
        """Give a result under a token; return the status of the answer."""
        return (await self.outside.post(f"/complete/{token}", json={"result": result})).status_code

    async def waits(self) -> None:
        """Return once a turn waits."""
        with trio.fail_after(20):
            while True:
                path, header = "/sessions?turn_state=waiting", {"authorization": f"Bearer {CREDENTIAL}"}
                if (await self.outside.get(path, headers=header)).json()["sessions"]:
                    return
                await trio.sleep(0.05)

    async def kill(self) -> None:
        """End the process without a word."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def serving(folder: Path, how: str, which: str) -> AsyncIterator[Server]:
    """Run a gateway on the store in a folder."""
    command = [sys.executable, "-m", "tests.promises.later_server", str(folder), how, which]
    async with running(command) as (process, telling):
        port = (await telling.must())["port"]
        async with client(port) as outside:
            yield Server(process, telling, outside)


@pytest.mark.parametrize("how", ["at once", "slow"])
async def test_a_result_before_and_after_a_kill(tmp_path: Path, how: str) -> None:
    """It comes while the tool still runs, or to the next process, while the call waits; it counts once."""
    result = {"state": "passed"}
    async with serving(tmp_path, how, "first") as first:
        token = (await first.telling.must())["token"]
        if how == "slow":
            assert await first.give(token, result) == 200
        else:
            await first.waits()
        await first.kill()
    async with serving(tmp_path, how, "second") as second:
        if how == "at once":
            await second.waits()
            assert await second.give(token, result) == 200
        with trio.fail_after(20):
            assert await second.telling.must() == {"text": "It builds.", "results": ['{"state":"passed"}']}
        assert await second.give(token, result) == 200
        assert await second.give(token, {"state": "failed"}) == 410
        assert await second.give(token[:-2] + "AA", result) == 404
