"""`warren.client` on trio and on asyncio, against `warren serve`, which is killed."""

import json
import signal
from collections.abc import Sequence
from typing import Final, Literal

import anyio
import pytest

from tests.support.checks import counted
from tests.transport.cli.process import Cli, Running
from warren.base.errors import AgentError
from warren.client import connect
from warren.conversation.events import Envelope, RunFailed, TextDelta, TurnResumed
from warren.conversation.options import TurnMode
from warren.conversation.views import TurnResult

ANSWER: Final = {"chunks": ["one ", "two ", "three"], "chunk_delay": 0.5}


def serve(cli: Cli, port: str = "0") -> tuple[Running, str]:
    """Start a gateway; return it and its address."""
    running = cli.start("serve", "--port", port, "--model", "echo", "--store", "kept")
    return running, running.read_until("\n").split()[-1]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_client_outlives_its_gateway(cli: Cli, backend: Literal["trio", "asyncio"]) -> None:
    """Kill -9 and a new process on the same port: the session goes on, and its subscriber has each event once."""
    running, url = serve(cli)

    async def program() -> None:
        nonlocal running
        seen, stored = [1], list[int]()
        async with connect(url) as service:
            told = list[int]()
            first = await service.create_session("one", on_event=lambda envelope: told.append(envelope.seq))
            assert told == [1, 2, 3, 4, 5, 6]
            async with service.subscribe(first.session_id, after_seq=0) as events:
                assert (await anext(events)).seq == 1
                running.signal(signal.SIGKILL)
                running.end()
                running, _ = serve(cli, url.rpartition(":")[2])
                second = await service.start_turn(first.session_id, "two", mode="queue")
                assert second.text == "two"
                async for envelope in events:
                    seen.append(envelope.seq)
                    if envelope.seq == second.last_seq:
                        break
            async with service.subscribe(first.session_id, after_seq=0) as events:
                async for envelope in events:
                    stored.append(envelope.seq)
                    if envelope.seq == second.last_seq:
                        break
            assert (seen, len(seen)) == (stored, 12)
            assert [each.session_id for each in (await service.list()).sessions] == [first.session_id]

    anyio.run(program, backend=backend)
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


async def killed(
    cli: Cli, steps: Sequence[object], mode: TurnMode | None
) -> tuple[list[Envelope], TurnResult | AgentError]:
    """Stream a turn whose gateway is killed when a piece of its answer is there, and started again.

    None is the mode of a new session.
    """
    (cli.folder / "script.json").write_text(json.dumps({"steps": steps, "loop": True}))

    def begin(port: str = "0") -> tuple[Running, str]:
        model = ("--model", "scripted:script.json", "--builtins")
        begun = cli.start("serve", "--port", port, *model, "--store", "kept")
        return begun, begun.read_until("\n").split()[-1]

    running, url = begin()
    heard, kills = list[Envelope](), 1
    end: TurnResult | AgentError
    async with connect(url) as service:
        if mode is None:
            stream = service.stream_session("go")
        else:
            stream = service.stream_turn((await service.create_session(None)).session_id, "go", mode=mode)
        async with stream as events:
            async for envelope in events:
                heard.append(envelope)
                if isinstance(envelope.event, TextDelta) and kills:
                    kills = 0
                    running.signal(signal.SIGKILL)
                    running.end()
                    running, _ = begin(url.rpartition(":")[2])
            try:
                end = await events.result()
            except AgentError as exc:
                end = exc
    running.signal(signal.SIGTERM)
    assert running.end().code == 0
    return heard, end


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("mode", ["busy", "queue", None])
def test_a_stream_outlives_the_gateway_of_its_turn(
    cli: Cli, backend: Literal["trio", "asyncio"], mode: TurnMode | None
) -> None:
    """Kill -9 in the second step: the next process goes on with the turn, and the stream has all of it."""
    steps = ({"tool_calls": [{"name": "datetime_now"}]}, ANSWER)
    heard, result = anyio.run(killed, cli, steps, mode, backend=backend)
    assert isinstance(result, TurnResult)
    assert (result.text, result.tool_calls) == ("one two three", 1)
    assert [each.event.resumed for each in heard if isinstance(each.event, TurnResumed)] == [1]
    assert (heard[0].seq, heard[-1].seq) == (result.first_seq, result.last_seq)
    assert text_of(counted(heard)) == result.text


@pytest.mark.parametrize("mode", ["queue", None])
def test_a_stream_of_a_prompt_with_a_key_outlives_a_gateway_that_kept_nothing(cli: Cli, mode: TurnMode | None) -> None:
    """Kill -9 in the first step: the prompt is stored, and its second turn is in the same stream."""
    heard, result = anyio.run(killed, cli, (ANSWER,), mode, backend="trio")
    assert isinstance(result, TurnResult)
    assert result.text == "one two three"
    assert heard[-1].seq == result.last_seq
    assert [each.seq for each in heard] == sorted({each.seq for each in heard})
    again = [each for each in heard if each.seq >= (result.first_seq or 0)]
    assert text_of(counted(again)) == result.text


def test_a_stream_of_a_prompt_that_is_lost_with_its_gateway_says_so(cli: Cli) -> None:
    """Kill -9 in the first step of a prompt that does not wait: its turn is over, and the call was lost."""
    heard, error = anyio.run(killed, cli, (ANSWER,), "busy", backend="trio")
    assert isinstance(error, AgentError)
    assert error.cause == "connection_lost"
    assert isinstance(heard[-1].event, RunFailed)
    assert heard[-1].event.cause == "crash"


def text_of(envelopes: Sequence[Envelope]) -> str:
    """Return the text that deltas have brought."""
    return "".join(each.event.delta for each in envelopes if isinstance(each.event, TextDelta))
