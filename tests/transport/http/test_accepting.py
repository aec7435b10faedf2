"""Clients are accepted again once the process has files for them."""

import errno
import logging
import os
from typing import Any, Self, cast

import pytest
import trio

from warren.transport.http.accepting import MINUTE, OpenFiles, serve_all

pytestmark = pytest.mark.virtual_time


class Scarce:
    """A listener of a process that has no file left until some time."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.tried = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """It has nothing to close."""

    async def accept(self) -> Any:
        await trio.lowlevel.checkpoint()
        self.tried += 1
        if trio.current_time() < self.until:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.until += MINUTE
        return self


async def test_a_process_without_files(caplog: pytest.LogCaptureFixture) -> None:
    """It says so once a minute, does not spin, and serves the clients that come when there are files again."""
    began = trio.current_time()
    listener, files = Scarce(began + 3.5 * MINUTE), OpenFiles()
    served = trio.Event()

    async def serve(_stream: object) -> None:
        await trio.lowlevel.checkpoint()
        served.set()

    async with trio.open_nursery() as nursery:
        listeners = [cast("trio.SocketListener", listener)]
        nursery.start_soon(serve_all, serve, listeners, files, nursery)
        with caplog.at_level(logging.ERROR):
            await served.wait()
        health = files.health()
        nursery.cancel_scope.cancel()
    assert len(caplog.records) == 4
    assert "clients cannot be accepted" in caplog.text
    assert listener.tried < 20 * 3.5 * MINUTE
    assert health is not None
    assert health.status == "degraded"
    assert health.last_error == f"clients cannot be accepted: {os.strerror(errno.EMFILE)}"
    await trio.sleep(MINUTE)
    assert files.health() is None


async def test_another_error_of_a_listener() -> None:
    """It ends the server: nothing would come of another attempt."""

    class Broken(Scarce):
        async def accept(self) -> Any:
            raise OSError(errno.EBADF, "bad")

    with pytest.raises(ExceptionGroup):
        async with trio.open_nursery() as nursery:
            await serve_all(trio.aclose_forcefully, [cast("trio.SocketListener", Broken(0))], OpenFiles(), nursery)
