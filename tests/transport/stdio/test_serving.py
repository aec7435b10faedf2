"""JSON-RPC in lines, over streams in memory: what is answered, in which order, and how it ends."""

from itertools import groupby
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_service import FakeService, FakeTurn
from tests.support.models import FunctionModel, reply
from tests.support.runtime import open_runtime
from tests.transport.clients import seqs, text
from tests.transport.stdio.client import events, line, near
from warren.conversation.events import TurnStarted
from warren.models.model import ModelReply, ModelRequest, TextPiece

PIECES = 3000


async def test_the_reply_comes_after_the_events() -> None:
    """A turn's events come in order, then the reply to it."""
    async with near(FakeService()) as client:
        answer = await client.call("session/create", prompt="one two")
        kinds = [kind for kind, _ in groupby(each["event"]["type"] for each in events(client.seen))]
        assert kinds == ["run_started", "text_delta", "run_completed"]
        assert (seqs(events(client.seen)), text(events(client.seen))) == ([1, 2, 3, 4], "onetwo")
        assert client.seen[-1]["result"] == answer
        assert answer["session_id"] == "n1"


async def test_odd_lines_are_read_as_lines() -> None:
    """Empty lines mean nothing, a carriage return does no harm, and the last line needs no end."""
    async with near(FakeService()) as client:
        await client.raw(b"\n \n" + line("health", 1).replace(b"\n", b"\r\n") + line("health", 2).rstrip())
        await client.hang_up()
        assert sorted(message["id"] for message in await client.rest()) == [1, 2]


@pytest.mark.parametrize("piece", [7, 1000])
async def test_a_line_that_is_too_long_is_passed_over(piece: int) -> None:
    """It gets an error under its id, however it arrives; the next one is read as ever."""
    async with near(FakeService(), max_message_bytes=200) as client:
        data = line("health", 1, padding="x" * 500) + line("health", 2)
        for start in range(0, len(data), piece):
            await client.raw(data[start : start + piece])
        refused, served = await client.reply(1), await client.reply(2)
        assert refused["error"]["code"] == -32600
        assert "more than 200 bytes" in refused["error"]["message"]
        assert served["result"]["status"] != "failed"


async def test_bytes_that_are_no_text_are_refused() -> None:
    """A message that is not UTF-8 is a parse error, and the connection lives."""
    async with near(FakeService()) as client:
        await client.raw(b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}\n')
        assert (await client.reply(None))["error"]["code"] == -32700
        assert (await client.call("health"))["status"] != "failed"


async def test_long_lines_go_out_whole() -> None:
    """An answer of megabytes is one line."""
    async with near(FakeService()) as client:
        words = "x" * 3_000_000
        assert (await client.call("session/create", prompt=words))["text"] == words


async def test_settings_are_shown_without_secrets() -> None:
    """A client can learn its bounds."""
    async with near(FakeService(), max_in_flight=7) as client:
        assert (await client.call("config/get"))["stdio"]["max_in_flight"] == 7


async def waits(turn: FakeTurn) -> None:
    """Take five seconds."""
    turn.say("begun")
    await trio.sleep(5)
    turn.service.calls.append(("finished", {}))


@pytest.mark.virtual_time
async def test_the_end_of_the_input_lets_requests_end() -> None:
    """A request that runs when the client has said all is answered; then the server ends."""
    began = trio.current_time()
    async with near(FakeService(waits), linger=10) as client:
        await client.send("session/create", prompt="x")
        await client.hang_up()
        assert (await client.rest())[-1]["result"]["session_id"] == "n1"
        await client.ended.wait()
        assert trio.current_time() - began == 5


@pytest.mark.virtual_time
async def test_the_end_of_the_input_does_not_wait_for_ever() -> None:
    """A request that takes longer than `linger` is told that the server ends, and its end is not waited for."""
    began = trio.current_time()
    async with near(FakeService(waits), linger=2) as client:
        await client.send("session/create", prompt="x")
        await client.hang_up()
        assert given_up((await client.rest())[-1])
        await client.ended.wait()
        assert 2 <= trio.current_time() - began < 5


@pytest.mark.virtual_time
async def test_a_stop_gives_requests_up() -> None:
    """Told to end, the server waits a moment for requests, and then tells those that are left."""
    began = trio.current_time()
    async with near(FakeService(waits), linger=10) as client:
        await client.send("session/create", prompt="x")
        while not events([await client.next() or {}]):
            pass
        client.stop.cancel()
        assert given_up((await client.rest())[-1])
        await client.ended.wait()
        assert trio.current_time() - began < 1


def given_up(message: dict[str, Any]) -> bool:
    """Tell whether a message is the reply to a request that was not waited for."""
    body = message["error"]["data"]
    return (message["id"], body["code"], body["details"]["cause"]) == (1, "AGENT_ERROR", "shutting_down")


async def talkative(_request: ModelRequest, emit: Any) -> ModelReply:
    """Say much more than may wait for a client."""
    for number in range(PIECES):
        emit(TextPiece(f"{number} "))
        if number % 7 == 0:
            await trio.lowlevel.checkpoint()
    return reply("".join(f"{number} " for number in range(PIECES)))


@pytest.mark.parametrize("watched", [False, True])
async def test_a_slow_reader_loses_nothing(*, watched: bool) -> None:
    """The turn does not wait for a client that reads nothing; then it reads all of it, in order, the reply last."""
    async with open_runtime(FunctionModel(talkative)) as service, near(service, lockstep=True) as client:
        session_id = (await client.call("session/create", prompt=None))["session_id"]
        if watched:
            await client.call("session/subscribe", session_id=session_id)
        before = len(client.seen)
        request = await client.send("turn/start", session_id=session_id, prompt="go")
        while (await service.read(session_id)).state.message_count < 2:  # noqa: ASYNC110 - only the service shows it
            await trio.sleep(0.001)
        answer = await client.reply(request)
        received = events(client.seen[before:], session_id)
        assert text(received) == answer["result"]["text"] == "".join(f"{number} " for number in range(PIECES))
        assert seqs(received) == list(range(received[0]["seq"], received[-1]["seq"] + 1))
        assert received[-1]["event"]["type"] == "run_completed"


@pytest.mark.virtual_time
async def test_the_end_of_the_input_cuts_no_slow_reader_short() -> None:
    """A client that has said all and reads on slowly gets every event, also those that found no room, and the reply."""

    async def burst(turn: FakeTurn) -> None:
        for number in range(50):
            turn.publish(TurnStarted(number))

    async with near(FakeService(burst), lockstep=True, linger=1, outbox_events=1, close_timeout=2) as client:
        await client.send("session/create", prompt="x")
        await client.hang_up()
        while await client.next() is not None:  # noqa: ASYNC110 - the client is the one that is slow
            await trio.sleep(1)
        assert seqs(events(client.seen)) == list(range(1, 53))
        assert client.seen[-1]["result"]["session_id"] == "n1"


async def test_a_reader_that_is_gone_stops_nothing() -> None:
    """Nobody reads any more: the turn still ends, and what is asked is still done."""
    service = FakeService()
    async with near(service) as client:
        await client.stream.receive_stream.aclose()
        await client.send("session/create", prompt="x")
        await client.send("session/archive", session_id="s1")
        await wait_all_tasks_blocked()
        assert [name for name, _ in service.calls] == ["create_session", "archive"]
        assert service.sessions["n1"].log[-1].event.__class__.__name__ == "RunCompleted"


async def test_many_sessions_at_once() -> None:
    """A hundred turns on one pipe: each reply is its own, after the last event of its session."""
    async with near(FakeService()) as client:
        requests = {await client.send("session/create", prompt=f"say {number}"): number for number in range(100)}
        finished: set[str] = set()
        while requests:
            message = await client.next()
            assert message is not None
            if "id" in message:
                assert message["result"]["text"] == f"say {requests.pop(message['id'])}"
                assert message["result"]["session_id"] in finished
            elif message["params"]["event"]["type"] == "run_completed":
                finished.add(message["params"]["session_id"])


async def test_every_line_is_one_json_object() -> None:
    """Line feeds inside of texts do not break the framing."""
    async with near(FakeService()) as client:
        await client.raw(line("session/create", 1, prompt="a\nb\u2028c"))
        assert (await client.reply(1))["result"]["text"] == "a\nb\u2028c"


@pytest.mark.virtual_time
async def test_an_end_that_nobody_reads_does_not_last() -> None:
    """The input ends and the output is not read: what waits is dropped after a while, and the server ends."""
    began = trio.current_time()
    async with near(FakeService(), lockstep=True, close_timeout=2) as client:
        await client.send("session/create", prompt="x y z")
        await client.hang_up()
        await client.ended.wait()
        assert trio.current_time() - began == 2
