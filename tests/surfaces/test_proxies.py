"""A gateway behind nginx and haproxy: as the page configures them, with their bare defaults, and in silence."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import h11
import httpx
import pytest
import trio
import trustme

from tests.support.fake_service import FakeService
from tests.support.reverse_proxies import PREFIX, PROGRAMS, Program, bare, documented, proxy
from tests.support.signing import standard
from tests.surfaces.routes import ALL, VALUES, answered
from tests.transport.cli.process import Cli
from tests.transport.clients import HOST, connect, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.rest.clients import TLS, Events, client, create
from warren.base.errors import AgentError
from warren.calls.facade import RuntimeService
from warren.client import connect as connect_client
from warren.conversation.events import RunCompleted

EACH = pytest.mark.parametrize("program", PROGRAMS)
SETTINGS: Final = {"public_url": "https://example.org" + PREFIX, "trusted_proxies": (HOST,)}
OTHER_HOST: Final = "127.0.0.5"
TOKEN: Final = "not-a-secret"  # noqa: S105 - of a test
ABNORMAL: Final = 1006
"""The code of a WebSocket that ends without a close frame."""
COMMANDS: Final = (
    "run hello --label a=b",
    "sessions list",
    "sessions show last",
    "resume last again --stream",
    "sessions fork last",
    "sessions archive last",
    "audit",
    "usage",
    "nodes list",
)


@asynccontextmanager
async def followed(port: int, path: str) -> AsyncIterator[Events]:
    """Follow the events at a path for a body."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        yield await Events(stream).open(path)


@asynccontextmanager
async def behind(program: Program, store: Path | None = None) -> AsyncIterator[tuple[RuntimeService, int]]:
    """A runtime behind a proxy that the page configures, for a body; yields the service and the proxy's port."""
    async with runtime(store) as service, gateway(service, **SETTINGS) as port:  # noqa: SIM117 - long
        async with proxy(program, documented(program), port) as front:
            yield service, front


@EACH
async def test_all_routes_through_a_proxy(program: Program) -> None:
    """Each route is answered through the proxy as it is without one."""
    async with (
        gateway(FakeService(), **SETTINGS) as port,
        proxy(program, documented(program), port) as front,
        gateway(FakeService()) as without,
        client(front, Accept="text/html") as http,
        client(without, Accept="text/html") as plain,
    ):
        for verb, pattern in ALL:
            path = pattern.format(session_id="s1", **VALUES) or "/"
            assert await answered(http, verb, PREFIX + path) == await answered(plain, verb, path), path


@EACH
async def test_clients_through_a_proxy(program: Program) -> None:
    """The client runs turns over its WebSocket, a stream brings events as they come, and both have all of them."""
    async with (
        behind(program) as (_, front),
        connect_client(f"http://{HOST}:{front}{PREFIX}") as remote,
        client(front) as http,
    ):
        made = await http.post(f"{PREFIX}/sessions", json={"prompt": "one", "model": "echo"})
        here = httpx.URL(f"http://{HOST}:{front}{PREFIX}/sessions").join(made.headers["location"])
        session_id = made.json()["session_id"]
        assert (await http.get(here)).json()["state"]["session_id"] == session_id
        async with followed(front, f"{PREFIX}/sessions/{session_id}/events?after_seq=0") as stream:
            seen = await stream.until("run_completed")
            told = list[int]()
            await remote.start_turn(session_id, "two", on_event=lambda envelope: told.append(envelope.seq))
            seen += await stream.until("run_completed")
        assert [each.id for each in seen] == list(range(1, len(seen) + 1))
        assert told == [each.id for each in seen][-len(told) :]


@EACH
async def test_signed_calls_through_a_proxy(program: Program) -> None:
    """The body and the headers come as they were signed; a call with another signature finds nothing."""
    async with behind(program) as (_, front), client(front) as http:
        asked = {"prompt": "{body}", "new_session": {"model": "echo"}}
        trigger = (await http.post(f"{PREFIX}/triggers", json=asked)).json()
        path, body = f"{PREFIX}/triggers/{trigger['trigger_id']}", b'{"a":  "\xc3\xbc"}\n'
        sent = await http.post(path, content=body, headers=standard(trigger["secret"], "d1", body))
        assert sent.status_code == 202
        refused = await http.post(path, content=body + b" ", headers=standard(trigger["secret"], "d2", body))
        assert refused.status_code == 404


@EACH
async def test_tls_at_a_proxy(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client reaches the gateway over TLS, and the metadata has the scheme that it has used."""
    authority, file = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))

    def without_path(config: str) -> str:
        """Have haproxy take the path away, as nginx does: the gateway is not told its address."""
        return config.replace("    option httpchk", "    http-request replace-path /warren(.*) \\1\n    option httpchk")

    async with (
        runtime() as service,
        gateway(service, token=TOKEN, trusted_proxies=(HOST,)) as port,
        proxy(program, documented(program), port, change=without_path, certificate=file) as front,
        httpx.AsyncClient(base_url=f"https://localhost:{front}{PREFIX}/") as http,
    ):
        async with connect_client(str(http.base_url), token=TOKEN) as remote:
            assert (await remote.create_session("hello", model="echo")).text == "hello"
        found = await http.get("/.well-known/oauth-protected-resource/mcp")
        assert found.json()["resource"].startswith("https://localhost")


@EACH
async def test_the_address_of_a_client_behind_a_proxy(program: Program) -> None:
    """The audit has the address of the client that the proxy has seen, and not what the client itself says."""
    forged = {"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6", "X-Forwarded-Proto": "https"}
    transport = httpx.AsyncHTTPTransport(local_address=OTHER_HOST, verify=TLS)
    async with (
        behind(program) as (_, front),
        httpx.AsyncClient(base_url=f"http://{HOST}:{front}{PREFIX}/", transport=transport) as http,
    ):
        await create(http)
        await http.post("/sessions", json={"prompt": None}, headers=forged)
        entries = (await http.get("/audit")).json()["entries"]
    assert [each["source"] for each in entries] == [OTHER_HOST, OTHER_HOST]


async def test_commands_through_a_proxy(cli: Cli) -> None:
    """Each command takes the address of a server below a path."""
    async with behind("nginx", cli.folder / "store") as (_, front):
        url = f"http://{HOST}:{front}{PREFIX}"
        lines = [f"{line} --server {url}" for line in COMMANDS]
        for line in (*lines, f"health {url}", f"load {url} --sessions 2 --turns 1"):
            ended = await trio.to_thread.run_sync(partial(cli.run, *line.split()))
            assert ended.code == 0, (line, ended.out, ended.err)


@EACH
async def test_a_proxy_with_its_defaults(program: Program) -> None:
    """REST and streams work with nothing but an address; nginx passes no WebSocket on, and a client says what to do."""
    async with runtime() as service, gateway(service) as port, proxy(program, bare(program), port) as front:
        async with client(front) as http:
            session_id = await create(http, model="echo")
            async with followed(front, f"/sessions/{session_id}/events?after_seq=0") as stream:
                for prompt in ("one", "two"):
                    done = await http.post(f"/sessions/{session_id}/messages", json={"prompt": prompt})
                    assert (done.status_code, done.json()["text"]) == (200, prompt)
                    await stream.until("run_completed")
        if program == "haproxy":
            async with connect_client(f"http://{HOST}:{front}") as remote:
                assert (await remote.create_session("hello", model="echo")).text == "hello"
            return
        with pytest.raises(AgentError, match=r"HTTP 426: a proxy in front .* Upgrade"):
            async with connect_client(f"http://{HOST}:{front}"):
                pass


def shorter(config: str) -> str:
    """Make all times of silence two seconds."""
    return re.sub(
        r"proxy_read_timeout 1h|timeout (client|server) +\w+",
        lambda found: f"{found[0].rsplit(maxsplit=1)[0]} 2s",
        config,
    )


async def stays(front: int, session_id: str, seconds: float) -> None:
    """Be silent for some seconds, then check that the WebSocket and the stream of events are still there."""
    async with (
        connect(front, PREFIX + "/ws") as socket,
        followed(front, f"{PREFIX}/sessions/{session_id}/events") as stream,
    ):
        await trio.sleep(seconds)
        assert (await socket.call("turn/start", session_id=session_id, prompt="there?"))["text"] == "there?"
        await stream.until("run_completed")
        assert stream.comments


async def is_cut(front: int, session_id: str) -> None:
    """Check that the proxy ends a silent WebSocket and a silent stream by itself."""
    async with (
        connect(front, PREFIX + "/ws") as socket,
        followed(front, f"{PREFIX}/sessions/{session_id}/events") as stream,
    ):
        assert await socket.closed() == ABNORMAL
        with pytest.raises((h11.RemoteProtocolError, AssertionError)):
            await stream.until("run_completed")


@EACH
async def test_silence_behind_a_proxy(program: Program) -> None:
    """A proxy that ends what is silent for two seconds keeps WebSockets and streams of a gateway with a heartbeat."""
    through = partial(proxy, program, documented(program), change=shorter)
    async with (
        runtime() as service,
        gateway(service, heartbeat=1.0, **SETTINGS) as port,
        gateway(service, heartbeat=60.0, **SETTINGS) as still,
        through(port) as front,
        through(still) as silent,
    ):
        session_id = (await service.create_session(None, model="echo")).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stays, front, session_id, 5.0)
            nursery.start_soon(is_cut, silent, session_id)


@EACH
@pytest.mark.soak
@pytest.mark.time_limit(200)
async def test_a_minute_of_silence_behind_a_proxy(program: Program) -> None:
    """The times of nginx and of Debian's haproxy are kept as they are: the default heartbeat outlasts them."""

    def usual(config: str) -> str:
        return re.sub(r" +(proxy_read_timeout|timeout server) 1h;?\n", "\n", config)

    async with runtime() as service, gateway(service, **SETTINGS) as port:
        session_id = (await service.create_session(None, model="echo")).session_id
        async with proxy(program, documented(program), port, change=usual) as front:
            await stays(front, session_id, 130.0)


@EACH
async def test_a_proxy_that_starts_again(program: Program) -> None:
    """A subscription goes on over the end of the proxy, and has every event once."""

    async def run(scope: trio.CancelScope, port: int, *, task_status: trio.TaskStatus[int]) -> None:
        with scope:
            async with proxy(program, documented(program), gateway_port, port=port) as front:
                task_status.started(front)
                await trio.sleep_forever()

    first, second = trio.CancelScope(), trio.CancelScope()
    async with runtime() as service, gateway(service, **SETTINGS) as gateway_port, trio.open_nursery() as nursery:
        session_id = (await service.create_session("one", model="echo")).session_id
        front = await nursery.start(run, first, 0)
        async with (
            connect_client(f"http://{HOST}:{front}{PREFIX}") as remote,
            remote.subscribe(session_id, after_seq=0) as reader,
        ):
            events = aiter(reader)
            seen = [await anext(events)]
            first.cancel()
            await service.start_turn(session_id, "two")
            await nursery.start(run, second, front)
            await service.start_turn(session_id, "three")
            while sum(isinstance(each.event, RunCompleted) for each in seen) < 3:
                seen.append(await anext(events))
        second.cancel()
    assert [each.seq for each in seen] == list(range(1, len(seen) + 1))
