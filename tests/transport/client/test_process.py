"""`warren.client` on trio and on asyncio, against `warren serve`, which is killed."""

import signal
from typing import Literal

import anyio
import pytest

from tests.transport.cli.process import Cli, Running
from warren.client import connect


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
