"""Clients that leave while their call costs the server much."""

from typing import TypeVar

import attrs
import pytest
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, connect, gateway
from warren.calls.base import Call
from warren.calls.operators import CheckStoreRequest

R = TypeVar("R")

POST = "POST /store/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@attrs.define(eq=False)
class Examining(FakeService):
    """A service whose examinations never end by themselves."""

    begun: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def perform(self, call: Call[R]) -> R:
        assert isinstance(call, CheckStoreRequest)
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()
        raise AssertionError


@pytest.mark.parametrize("way", ["HTTP", "WebSocket"])
async def test_an_examination_ends_when_its_client_leaves(way: str) -> None:
    """Nobody waits for its report any more, and there is one at a time."""
    service = Examining()
    async with gateway(service) as port:
        if way == "HTTP":
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(POST.encode())
                await service.begun.wait()
        else:
            async with connect(port) as client:
                await client.send("store/check")
                await service.begun.wait()
        with trio.fail_after(5):
            await service.ended.wait()


async def test_a_client_that_closes_its_side_is_told_so() -> None:
    """The answer names the reason, and not a shutdown that nobody has begun."""
    service = Examining()
    async with gateway(service) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(POST.encode())
        await service.begun.wait()
        await stream.send_eof()
        answer = b"".join([part async for part in stream])
    assert b"the client has closed its side" in answer
    assert b"shutting_down" not in answer
