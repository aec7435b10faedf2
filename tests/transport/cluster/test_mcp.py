"""MCP over HTTP at several nodes: a session is at one of them, and the others pass its requests on."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.support.models import Puppet
from tests.transport.clients import HOST
from tests.transport.cluster.balancing import balanced, without_keep_alive
from tests.transport.cluster.nodes import Home, Node, cluster, node, shared_store
from tests.transport.http.tokens import listed
from tests.transport.mcp.clients import ACCEPT, HELLO, PING, at_rest
from tests.transport.mcp.turning import under_way
from warren.settings.config import Limits, PostgresConfig, StoreConfig
from warren.transport.rpc.behalf import BEHALF_HEADER

pytestmark = [
    pytest.mark.time_limit(60),
    # The client's own HTTP library leaves generators behind.
    pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreConfig | PostgresConfig]:
    """A place for a store."""
    with shared_store("files", tmp_path) as made:
        yield made


def mcp(of: Node) -> str:
    """Return the address of MCP at a node."""
    return f"http://{HOST}:{of.port}/mcp"


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("home", ["files", "database"])
async def test_a_session_goes_on_at_whichever_node_is_asked(home: Home, tmp_path: Path) -> None:
    """Calls, progress, log levels, subscriptions, cancels and the end: all of them find the node of the session."""
    model = Puppet()
    with shared_store(home, tmp_path) as store:
        statuses = await used_through(store, model)
    assert set(statuses) == {200, 202}


async def used_through(store: StoreConfig | PostgresConfig, model: Puppet) -> Counter[int]:
    """Use two nodes by turns, in all ways; return the statuses of the answers."""
    async with (
        cluster(store, 2, puppet=model) as nodes,
        balanced([each.port for each in nodes]) as port,
        without_keep_alive(f"http://{HOST}:{port}/mcp") as (program, statuses),
    ):
        await program.client.set_logging_level("info")
        session = (await program.ask("warren_run", prompt="one", model="echo"))["session_id"]
        assert [each.data["event"] for each in program.logged()] == ["RunStarted", "RunCompleted"]
        await program.client.subscribe_resource(f"warren://sessions/{session}")
        for number in range(20):
            await program.ask("warren_resume", watch=True, session_id=session, prompt=f"{number}")
            assert program.told[-1] == "run completed"
        await program.until(lambda: len(program.updated()) == 20)
        session = (await program.ask("warren_run", prompt=None, model="puppet"))["session_id"]
        async with under_way(program, "warren_resume", session_id=session, prompt="long") as scope:
            model.say("half")
            await program.hear("half")
            scope.cancel()
        assert await at_rest(nodes[0].service, session) == "half"
    return statuses


async def test_the_end_of_a_session_holds_at_every_node(store: StoreConfig | PostgresConfig) -> None:
    """Whichever node is told; ids that name no node, an unknown one or this one are unknown, too."""
    async with cluster(store, 2) as (anna, berta), httpx.AsyncClient(headers=ACCEPT) as http:
        begun = {"mcp-session-id": (await http.post(mcp(anna), json=HELLO)).headers["mcp-session-id"]}
        assert (await http.post(mcp(berta), json=PING, headers=begun)).status_code == 200
        assert (await http.delete(mcp(berta), headers=begun)).status_code == 200
        for each in (anna, berta):
            own = begun["mcp-session-id"].partition(".")[0]
            for unknown in (begun["mcp-session-id"], f"{own}.x", f"{own}", "9999.x", "x", ".", "1" * 60 + ".x", "²."):
                headers = {b"mcp-session-id": unknown.encode()}
                answer = await http.post(mcp(each), json=PING, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32600), unknown


async def test_a_session_ends_with_its_node(store: StoreConfig | PostgresConfig) -> None:
    """At once, and although the store still counts the node as living: clients then begin another session."""
    async with node(store, "anna") as anna, httpx.AsyncClient(headers=ACCEPT) as http:
        async with node(store, "berta") as berta:
            begun = {"mcp-session-id": (await http.post(mcp(berta), json=HELLO)).headers["mcp-session-id"]}
            assert (await http.post(mcp(anna), json=PING, headers=begun)).status_code == 200
            async with http.stream("GET", mcp(anna), headers=begun) as stream:
                assert stream.status_code == 200
                berta.gateway.cancel()
                with pytest.raises(httpx.RemoteProtocolError), trio.fail_after(10):
                    await stream.aread()
            assert (await http.post(mcp(anna), json=PING, headers=begun)).status_code == 404
            assert "berta" in [each.name for each in await anna.service.nodes()]
        assert (await http.post(mcp(anna), json=PING, headers=begun)).status_code == 404


async def test_a_stream_ends_at_the_node_of_its_session_with_its_client(
    store: StoreConfig | PostgresConfig,
) -> None:
    """A session has one: it is free again once the client of the other node has left."""
    async with cluster(store, 2) as (anna, berta), httpx.AsyncClient(headers=ACCEPT) as http:
        begun = {"mcp-session-id": (await http.post(mcp(anna), json=HELLO)).headers["mcp-session-id"]}
        async with http.stream("GET", mcp(berta), headers=begun) as stream:
            assert stream.status_code == 200
            assert (await http.get(mcp(anna), headers=begun)).status_code == 409
        with trio.fail_after(10):
            while True:
                async with http.stream("GET", mcp(anna), headers=begun) as stream:
                    if stream.status_code == 200:
                        break


async def test_a_stream_of_a_living_node_does_not_hold_up_the_end_of_another(
    store: StoreConfig | PostgresConfig,
) -> None:
    """The node that passes it on ends it with its other streams; the session goes on at its own node."""

    async def read(of: Node, *, task_status: trio.TaskStatus[None]) -> None:
        async with http.stream("GET", mcp(of), headers=begun) as stream:
            assert stream.status_code == 200
            task_status.started()
            with pytest.raises(httpx.RemoteProtocolError), trio.fail_after(10):
                await stream.aread()

    async with node(store, "anna") as anna, httpx.AsyncClient(headers=ACCEPT) as http, trio.open_nursery() as tasks:
        begun = {"mcp-session-id": (await http.post(mcp(anna), json=HELLO)).headers["mcp-session-id"]}
        async with node(store, "berta", settings={"close_timeout": 15.0}) as berta:
            await tasks.start(read, berta)
            berta.gateway.cancel()
        assert (await http.post(mcp(anna), json=PING, headers=begun)).status_code == 200


async def test_the_door_finds_the_principal(store: StoreConfig | PostgresConfig, tmp_path: Path) -> None:
    """To another one's token the session is unknown, at every node; a client cannot say for whom it calls."""
    tokens = tmp_path / "tokens.toml"
    ann, bob = listed(tokens, name="ann"), listed(tokens, name="bob")
    async with (
        cluster(store, 2, settings={"token_file": tokens}) as (anna, berta),
        httpx.AsyncClient(headers=ACCEPT) as http,
    ):
        hello = await http.post(mcp(anna), json=HELLO, headers=bearer(ann))
        begun = {"mcp-session-id": hello.headers["mcp-session-id"]}
        for each in (anna, berta):
            assert (await http.post(mcp(each), json=PING, headers={**begun, **bearer(ann)})).status_code == 200
            assert (await http.post(mcp(each), json=PING, headers={**begun, **bearer(bob)})).status_code == 404
            for name in ("x", "node.", "node.e30.x"):
                claimed = {BEHALF_HEADER: json.dumps({"on_behalf_of": {"tenant": "default", "name": "ann"}})}
                answer = await http.post(mcp(each), json=PING, headers={**begun, **claimed, **bearer(name)})
                assert answer.status_code == 401
            answer = await http.post(mcp(each), json=PING, headers={**begun, **claimed, **bearer(bob)})
            assert answer.status_code == 404


async def test_a_principal_has_its_share_of_the_node_that_serves_it(
    store: StoreConfig | PostgresConfig, tmp_path: Path
) -> None:
    """Requests that another node passes on take places of their principal; one more is refused, others are served."""
    tokens = tmp_path / "tokens.toml"
    of_ann, of_bob = (bearer(listed(tokens, name=name)) for name in ("ann", "bob"))
    few, limits = {"token_file": tokens, "max_http": 10}, Limits(principal_share=0.3)
    async with (
        node(store, "anna", settings=few, limits=limits) as anna,
        node(store, "berta", settings={"token_file": tokens}) as berta,
        httpx.AsyncClient(headers={**ACCEPT, **of_ann}) as ann,
        httpx.AsyncClient(headers={**ACCEPT, **of_bob}) as bob,
    ):
        opened = partial(streamed, anna, berta)
        async with opened(ann) as one:  # and its client has a connection to anna
            async with opened(ann) as two, opened(ann) as three, opened(bob) as other:
                statuses = [each.status_code for each in (one, two, three, other)]
                assert statuses == [200, 200, 429, 200]
                await three.aread()
                assert (three.json()["details"]["cause"], three.headers["retry-after"]) == ("token_share", "1")
            with trio.fail_after(10):  # the node sees a moment later that a stream is closed
                while not await is_let_in(opened(ann)):
                    pass


@asynccontextmanager
async def streamed(home: Node, door: Node, http: httpx.AsyncClient) -> AsyncIterator[httpx.Response]:
    """Begin a session at one node, and open its stream at another one."""
    begun = {"mcp-session-id": (await http.post(mcp(home), json=HELLO)).headers["mcp-session-id"]}
    async with http.stream("GET", mcp(door), headers=begun) as stream:
        yield stream


async def is_let_in(opening: AbstractAsyncContextManager[httpx.Response]) -> bool:
    """Return whether a stream is opened."""
    async with opening as stream:
        return stream.status_code == 200


def bearer(token: str) -> dict[str, Any]:
    """Return the header with a token."""
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("answer", "status", "cause"),
    [
        (b"", 404, "connection_lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 404, None),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 404, "connection_lost"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 503, "unreachable"),
    ],
)
async def test_another_server_has_the_address_of_a_node(
    store: StoreConfig | PostgresConfig, answer: bytes, status: int, cause: str | None
) -> None:
    """Its answers are not taken for the node's: the session is gone, or cannot be reached while the node is full."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            if answer:
                await stream.send_all(answer)

    async with trio.open_nursery() as tasks:
        (listener,) = await tasks.start(partial(trio.serve_tcp, serve, 0, host=HOST))
        address = f"ws://{HOST}:{listener.socket.getsockname()[1]}"
        async with (
            node(store, "anna") as anna,
            node(store, "berta", address=address) as berta,
            httpx.AsyncClient(headers=ACCEPT) as http,
        ):
            begun = {"mcp-session-id": (await http.post(mcp(berta), json=HELLO)).headers["mcp-session-id"]}
            found = await http.post(mcp(anna), json=PING, headers=begun)
            assert (found.status_code, found.headers.get("retry-after")) == (status, "1" if status == 503 else None)
            assert found.json()["error"]["data"]["details"].get("cause") == cause
        tasks.cancel_scope.cancel()
