"""The limits of one client; no client can harm another."""

import contextlib
import json
import logging
import socket
import struct
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, Request, TextMessage

from tests.support.fake_service import FakeService, FakeTurn
from tests.support.waiting import AT_ONCE
from tests.transport.clients import HEALTH, HOST, Frames, connect, frames, gateway, healthy, knock, let_in, seqs, text
from warren.conversation.events import ToolCallRequested, ToolExecutionStarted, TurnStarted


async def forever(turn: FakeTurn) -> None:
    """A turn that does not end."""
    turn.say("begun")
    await trio.sleep_forever()


@pytest.mark.parametrize("more", [1, 400_000])
@pytest.mark.parametrize("place", ["before", "behind"])
async def test_a_message_over_the_limit_is_answered_under_its_id(more: int, place: str) -> None:
    """If it may be so long by its escapes alone; the requests before and behind it are answered, too."""
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": "long", "method": "session/create", "params": {"prompt": ""}}
    if place == "behind":
        request["id"] = request.pop("id")
    request["params"]["prompt"] = "\u00fc" * ((100_000 + more) // 6)
    async with gateway(FakeService(), max_message_bytes=100_000) as port, frames(port) as client:
        for text_ in (HEALTH, json.dumps(request), HEALTH):
            await client.send(TextMessage(text_))
        found = list[Any]()
        while len(found) < 3:
            if isinstance(event := await client.next(), TextMessage):
                found.append(json.loads(event.data))
    by_id = {each["id"]: each for each in found}
    assert len(by_id) == 2
    assert by_id["long"]["error"]["code"] == -32600
    assert "has more than 100000 bytes" in by_id["long"]["error"]["message"]


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_a_message_over_the_limit_may_be_cut_anywhere(cut: int) -> None:
    """It is answered under its id, also if the head of its frame comes in two pieces."""
    text = json.dumps({"jsonrpc": "2.0", "id": "long", "method": "health", "params": {"x": "x" * 1000}})
    async with gateway(FakeService(), max_message_bytes=1000) as port, frames(port) as client:
        frame = client.protocol.send(TextMessage(text))
        await client.stream.send_all(frame[:cut])
        await wait_all_tasks_blocked(0.01)
        await client.stream.send_all(frame[cut:])
        event = await client.next()
    assert isinstance(event, TextMessage)
    assert json.loads(event.data)["id"] == "long"


async def test_a_message_far_over_the_limit_ends_its_connection() -> None:
    """One of just the limit is served, one of many times is closed with 1009 and a reason, and nobody else is."""
    async with gateway(FakeService(), max_message_bytes=100_000) as port, connect(port) as other:
        for times in (7, 60):
            async with frames(port) as client, trio.open_nursery() as nursery:
                fitting = HEALTH + " " * (100_000 - len(HEALTH))
                await client.send(TextMessage(fitting))
                assert isinstance(await client.next(), TextMessage)
                nursery.start_soon(client.send, TextMessage(fitting * times + " "))
                await refused(client, "the message has more than 100000 bytes")
                nursery.cancel_scope.cancel()
        assert await healthy(other)


async def refused(client: Frames, reason: str) -> None:
    """Expect to be closed with 1009, and then the end of the stream."""
    with trio.fail_after(AT_ONCE):
        while isinstance(event := await client.next(), TextMessage):
            pass
        assert event == CloseConnection(1009, reason)
        with contextlib.suppress(trio.BrokenResourceError):
            while await client.stream.receive_some():
                pass


@pytest.mark.parametrize(
    "head", [b"\x81\xfe\x17\x71", b"\x82\xff" + bytes(5) + b"\xff" * 3, b"\x01\xff\x7f" + b"\xff" * 7]
)
async def test_a_head_that_announces_too_much_is_enough(head: bytes) -> None:
    """A client that announces more than the limit is closed at once: none of its bytes is waited for."""
    async with gateway(FakeService(), max_message_bytes=1000) as port, frames(port) as client:
        for byte in head:
            await client.stream.send_all(bytes([byte]))
        await refused(client, "the message has more than 1000 bytes")


async def test_the_limit_is_in_bytes() -> None:
    """Characters that take several bytes count as many; what is no request has no id."""
    async with gateway(FakeService(), max_message_bytes=1000) as port, frames(port) as client:
        await client.send(TextMessage("\u20ac" * 400))
        event = await client.next()
    assert isinstance(event, TextMessage)
    reply = json.loads(event.data)
    assert reply["id"] is None
    assert "the message has more than 1000 bytes" in reply["error"]["message"]


async def test_endless_empty_fragments_are_not_collected(caplog: pytest.LogCaptureFixture) -> None:
    """A message of empty fragments is refused once there are many of them; others are served meanwhile."""
    async with (
        gateway(FakeService()) as port,
        connect(port) as other,
        frames(port) as client,
        trio.open_nursery() as nursery,
    ):
        await client.send(TextMessage("", message_finished=False))
        empty = client.protocol.send(TextMessage("", message_finished=False))

        async def flood() -> None:
            while True:
                await client.stream.send_all(empty * 10_000)

        async def flood_until_refused() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await flood()

        nursery.start_soon(flood_until_refused)
        for _ in range(20):
            assert await healthy(other)
        await refused(client, "the message comes in more than 20480 parts")
        assert await healthy(other)
        nursery.cancel_scope.cancel()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_fragments_make_one_message() -> None:
    """A message in a hundred fragments, with pings among them, is one message."""
    async with gateway(FakeService()) as port, frames(port) as client:
        for letter in HEALTH[:-1]:
            await client.send(TextMessage(letter, message_finished=False))
        await client.send(Ping(b"there?"))
        await client.send(TextMessage(HEALTH[-1]))
        assert isinstance(await client.next(), Pong)
        reply = await client.next()
        assert isinstance(reply, TextMessage)
        assert json.loads(reply.data)["result"]["status"] != "failed"


async def test_the_limit_holds_for_fragments_together() -> None:
    """A message over the limit in many fragments, empty ones too, is refused; a finished one counts no more."""
    async with gateway(FakeService(), max_message_bytes=1000) as port, frames(port) as client:
        for last in (True, False):
            for _ in range(9):
                await client.send(TextMessage(" " * 100, message_finished=False))
                await client.send(TextMessage("", message_finished=False))
            await client.send(TextMessage(HEALTH, message_finished=last))
        assert isinstance(await client.next(), TextMessage)
        await client.send(TextMessage(" " * 100))
        await refused(client, "the message has more than 1000 bytes")


async def test_binary_frames_are_refused_in_words() -> None:
    """A binary frame gets an error; the connection lives."""
    async with gateway(FakeService()) as port, frames(port) as client:
        for event in (BytesMessage(HEALTH.encode()), TextMessage(HEALTH)):
            await client.send(event)
        refused, served = await client.next(), await client.next()
        assert isinstance(refused, TextMessage)
        assert isinstance(served, TextMessage)
        assert "binary" in json.loads(refused.data)["error"]["message"]
        assert "result" in json.loads(served.data)


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        (b"\xff" * 50, 1002),
        (b"\x81\x02hi", 1002),  # a client has to mask
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
        (b"\xc1\x80\0\0\0\0", 1002),  # a reserved bit
        (b"\x83\x80\0\0\0\0", 1002),  # a reserved opcode
        (b"\x09\x80\0\0\0\0", 1002),  # half a ping
        (b"\x80\x80\0\0\0\0", 1002),  # a continuation of nothing
        (b"\x01\x80\0\0\0\0\x81\x80\0\0\0\0", 1002),  # a message inside another
        (b"\x88\x81\0\0\0\0\x03", 1002),  # half a close code
        (b"\x81\x82\0\0\0\0\xff\xff", 1007),
        (b"\x01\x81\0\0\0\0\xc3\x80\x81\0\0\0\0a", 1007),  # half a character
    ],
)
async def test_a_broken_frame_is_answered_with_the_reason(garbage: bytes, code: int) -> None:
    """The connection that sent it is closed with the code for it, and no other; what came before it is answered."""
    async with gateway(FakeService()) as port, connect(port) as other, frames(port) as client:
        await client.send(TextMessage(HEALTH))
        assert isinstance(await client.next(), TextMessage)
        await client.stream.send_all(garbage)
        with trio.fail_after(AT_ONCE):
            assert await client.closed() == code
            while await client.stream.receive_some():
                pass
        assert await healthy(other)


async def test_half_a_frame_ends_one_connection() -> None:
    """A client that goes away in the middle of a frame takes nobody with it."""
    async with gateway(FakeService()) as port, connect(port) as other, frames(port) as client:
        await client.stream.send_all(b"\x81\xfe")
        await client.stream.send_eof()
        with trio.fail_after(AT_ONCE):
            while await client.stream.receive_some():
                pass
        assert await healthy(other)


async def test_a_clients_close_is_answered() -> None:
    """A client that closes gets its code back, or none where it gave none, and then the end of the stream."""
    closes = {1000: b"\x88\x82\0\0\0\0\x03\xe8", 4321: b"\x88\x82\0\0\0\0\x10\xe1", 1005: b"\x88\x80\0\0\0\0"}
    for code, frame in closes.items():
        async with gateway(FakeService()) as port, frames(port) as client:
            await client.stream.send_all(frame)
            with trio.fail_after(AT_ONCE):
                assert await client.closed() == code
                assert not await client.stream.receive_some()


async def test_a_ping_after_the_goodbye_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A client that was told that the server leaves may still send what it likes before it closes."""

    async def leave(client: Frames) -> None:
        more = client.protocol.send(Ping(b"there?")) + client.protocol.send(TextMessage(HEALTH))
        async with client.stream:
            closed = await client.next()
            assert isinstance(closed, CloseConnection)
            assert closed.code == 1012
            await client.stream.send_all(more)
            await client.send(closed.response())
            assert not await client.stream.receive_some()

    async with trio.open_nursery() as nursery, gateway(FakeService(), close_timeout=AT_ONCE) as port:
        client = Frames(await trio.open_tcp_stream(HOST, port))
        await client.open()
        nursery.start_soon(leave, client)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_pings_of_a_client_that_does_not_read_are_dropped() -> None:
    """A flood of pings fills no memory: the client's sending goes on, and it is served once it reads."""
    async with gateway(FakeService()) as port, frames(port) as client, trio.open_nursery() as nursery:
        ping = client.protocol.send(Ping(b"x" * 125))
        nursery.start_soon(client.stream.send_all, ping * 10_000 + client.protocol.send(TextMessage(HEALTH)))
        with trio.fail_after(60):
            while isinstance(event := await client.next(), Pong):
                pass
        assert isinstance(event, TextMessage)


async def test_too_many_connections_are_refused() -> None:
    """One more than the limit gets 503; when one leaves there is room."""
    async with gateway(FakeService(), max_connections=2) as port, connect(port) as one:
        async with connect(port) as two:
            assert await knock(port) == 503
            assert await healthy(one)
            assert await healthy(two)
        with trio.fail_after(AT_ONCE):
            await let_in(port)


async def test_too_many_requests_at_once_are_refused() -> None:
    """One more than the limit gets CAPACITY_EXCEEDED at once; an interrupt is still let through."""
    service = FakeService(behaviour=forever)
    async with gateway(service, max_in_flight=3) as port, connect(port) as client:
        for session_id in ("s1", "s2", "s3"):
            await client.send("turn/start", session_id=session_id, prompt="go")
        error = await client.error("health")
        assert (error["code"], error["data"]["code"]) == (-32008, "CAPACITY_EXCEEDED")
        assert error["data"]["retryable"] is True
        assert error["data"]["details"] == {"cause": "max_in_flight"}
        assert await client.call("turn/interrupt", session_id="s1") == {"interrupted": True}
        async with connect(port) as other:
            assert await healthy(other)


async def test_a_request_that_ended_makes_room() -> None:
    """The limit counts what runs, not what ran."""
    async with gateway(FakeService(), max_in_flight=1) as port, connect(port) as client:
        for _ in range(20):
            assert await healthy(client)


async def test_too_many_subscriptions_are_refused() -> None:
    """A connection follows as many sessions as it may."""
    async with gateway(FakeService(), max_subscriptions=1) as port, connect(port) as client:
        await client.call("session/subscribe", session_id="s1")
        error = await client.error("session/subscribe", session_id="s2")
        assert error["data"]["details"] == {"cause": "max_subscriptions"}


async def test_a_bug_in_a_handler_is_one_error(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception is logged and answered without its text; connection and server live."""
    service = FakeService(on_read=RuntimeError("secret detail"))
    async with gateway(service) as port, connect(port) as client, connect(port) as other:
        error = await client.error("session/read", session_id="s1")
        assert (error["code"], error["message"]) == (-32603, "internal error")
        assert "secret" not in json.dumps(error)
        assert await healthy(client)
        assert await healthy(other)
    assert "secret detail" in caplog.text


async def test_a_group_of_errors_is_one_error(caplog: pytest.LogCaptureFixture) -> None:
    """Exception groups do not end the connection either."""
    service = FakeService(on_read=ExceptionGroup("several", [ValueError("a"), OSError("b")]))
    async with gateway(service) as port, connect(port) as client:
        assert (await client.error("session/read", session_id="s1"))["code"] == -32603
        assert await healthy(client)
    assert "several" in caplog.text


async def test_a_subscription_that_cannot_begin_is_one_error() -> None:
    """A bug in the service's own subscription reaches the request that asked for it, and nothing else."""

    async def boom() -> None:
        raise RuntimeError("boom")

    async with gateway(FakeService(on_subscribe=boom)) as port, connect(port) as client:
        assert (await client.error("session/subscribe", session_id="s1"))["code"] == -32603
        await client.call("turn/start", session_id="s1", prompt="still heard")
        assert text(client.events("s1")) == "stillheard"


async def test_an_event_that_json_cannot_hold_is_reported_missing(caplog: pytest.LogCaptureFixture) -> None:
    """Text that UTF-8 has no bytes for costs the one event."""

    async def odd(turn: FakeTurn) -> None:
        turn.publish(ToolExecutionStarted("1", "\ud800"))
        turn.publish(ToolCallRequested("1", "t", {"a": 1}))

    async with gateway(FakeService(behaviour=odd)) as port, connect(port) as client:
        await client.call("turn/start", session_id="s1", prompt="go")
        events = client.events("s1")
        assert [event["event"]["type"] for event in events][1:3] == ["stream_truncated", "tool_call_requested"]
        assert events[1]["event"] == {"type": "stream_truncated", "dropped": 1, "resume_after": 1}
    assert "cannot be encoded" in caplog.text


async def test_a_slow_reader_gets_everything_and_the_reply_last() -> None:
    """Past the bound events stay in the log until the client has read; the reply waits for them."""

    async def burst(turn: FakeTurn) -> None:
        for number in range(100):
            turn.publish(TurnStarted(number))

    async with gateway(FakeService(behaviour=burst), outbox_events=10) as port, connect(port) as client:
        await client.call("turn/start", session_id="s1", prompt="go")
        assert seqs(client.events("s1")) == list(range(1, 103))
        assert "result" in client.seen[-1]


async def test_clients_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that leave in every rude way leave nothing behind and no errors in the log."""
    service = FakeService(behaviour=forever)

    async def rude(port: int, number: int) -> None:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            request = Frames(stream).protocol.send(Request(host=HOST, target="/ws"))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0))
            await stream.send_all(request[: number * 20])

    async def ruder(port: int) -> None:
        async with frames(port) as client:
            params: dict[str, Any] = {"session_id": "s1", "prompt": "go"}
            call = {"jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": params}
            await client.send(TextMessage(json.dumps(call)))
            await client.next()

    async with gateway(service, max_connections=25) as port:
        for number in range(30):
            await rude(port, number % 11)
            await ruder(port)
        async with connect(port) as client:
            assert await healthy(client)
        assert not any(map(service.readers, service.sessions))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
