"""Batches of JSON-RPC, over a WebSocket and in lines."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import pytest

from tests.support.fake_service import FakeService
from tests.transport.clients import Client, connect, gateway
from tests.transport.stdio.client import Near, near
from warren.calls.facade import RuntimeService

MAX = 5


@asynccontextmanager
async def served(how: str, service: RuntimeService) -> AsyncIterator[Client | Near]:
    """Serve one client."""
    if how == "stdio":
        async with near(service, max_in_flight=MAX) as line:
            yield line
    else:
        async with gateway(service, max_in_flight=MAX) as port, connect(port) as socket:
            yield socket


async def said(client: Client | Near, *messages: Any) -> None:
    """Send a batch."""
    text = json.dumps(messages)
    if isinstance(client, Near):
        await client.raw(text.encode() + b"\n")
    else:
        await client.raw(text)


async def received(client: Client | Near) -> Any:
    """Return the next message, an object or a list."""
    if isinstance(client, Near):
        line = await client.reader.next()
        assert line is not None
        return json.loads(line)
    return json.loads(await client.socket.get_message())


def call(number: int | None, method: str, **params: Any) -> dict[str, Any]:
    """Return a request, or a notification where it has no number."""
    return {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})


SURFACES = pytest.mark.parametrize("how", ["websocket", "stdio"])


@SURFACES
async def test_a_batch_gets_one_reply(how: str) -> None:
    """Every request and every bad message in it is answered, in one list, after the last event of its turns."""
    async with served(how, FakeService()) as client:
        turn = call(1, "session/create", prompt="one two")
        await said(client, turn, call(None, "initialized"), call(2, "no/such"), 7, call(3, "health"))
        events = []
        while isinstance(message := await received(client), dict):
            events.append(message["params"]["event"]["type"])
        assert [kind for kind, _ in groupby(events)] == ["run_started", "text_delta", "run_completed"]
        replies = {reply["id"]: reply for reply in message}
        assert len(message) == len(replies) == 4
        assert replies[1]["result"]["session_id"] == "n1"
        assert replies[2]["error"]["code"] == -32601
        assert replies[None]["error"]["data"]["details"]["path"] == "$[3]"
        assert replies[3]["result"]["status"] != "failed"


@SURFACES
async def test_a_batch_of_notifications_gets_no_reply(how: str) -> None:
    """Not even an empty list: the next thing that comes is the reply to the next request."""
    async with served(how, FakeService()) as client:
        await said(client, call(None, "initialized"), call(None, "no/such"))
        await said(client, call(5, "health"))
        assert [reply["id"] for reply in await received(client)] == [5]


@SURFACES
async def test_a_batch_is_bounded(how: str) -> None:
    """One with more messages than may be unanswered gets one error, and none of it is done."""
    service = FakeService()
    async with served(how, service) as client:
        await said(client, *(call(number, "session/create", prompt="x") for number in range(MAX + 1)))
        error = (await received(client))["error"]
        assert (error["code"], error["data"]["code"]) == (-32600, "INVALID_REQUEST")
        assert "5 messages" in error["message"]
        await said(client)
        assert "empty" in (await received(client))["error"]["message"]
        assert service.calls == []
