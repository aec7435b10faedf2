"""A server that may open few files."""

import contextlib
import resource
from collections.abc import Iterator

import httpx
import trio

from tests.transport.cli.process import Cli, Running
from tests.transport.cli.serving import connected, serve
from warren.transport.cli.process.tuning import clients_within, files_for

FEW = 256
LIMITED = (
    "import resource, sys; few = int(sys.argv.pop(1)); resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)); "
    "from warren.transport.cli import main; sys.exit(main())"
)


def test_the_recommended_limit_suffices() -> None:
    """The number that the warning names lets in all clients."""
    for clients in (1, 7, 1_000, 100_000):
        assert clients_within(files_for(clients)) == clients


async def test_too_few_files(cli: Cli) -> None:
    """A server says so when it starts, and in its health, and lets in those clients that it has files for."""
    most = clients_within(FEW)
    running = cli.start("serve", "--port", "0", "--drain", "4s", python=("-c", LIMITED, str(FEW)))
    url = running.read_until("\n").removeprefix("listening on ").strip()
    said = running.read_until("\n", error=True)
    assert f"max_connections is {most} in place of 1000" in said
    assert f"may open {FEW} files" in said
    assert f"ulimit -n {files_for(1000)}" in said
    port = int(url.rpartition(":")[2])
    async with contextlib.AsyncExitStack() as stack, httpx.AsyncClient(base_url=url) as http:
        health = (await http.get("/health")).json()
        assert health["status"] == "degraded"
        assert f"ulimit -n {files_for(1000)}" in health["files"]["last_error"]
        assert (await http.get("/config")).json()["gateway"]["max_connections"] == most
        held = [await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(3 * most)]
        for _ in range(10):  # the connections that have sent nothing make room
            assert (await http.post("/sessions", json={"prompt": "hello"})).json()["text"] == "hello"
        assert held


@contextlib.contextmanager
def no_more_files(running: Running) -> Iterator[None]:
    """Let a process open no more files during a body."""
    number = running.process.pid
    soft, hard = resource.prlimit(number, resource.RLIMIT_NOFILE)
    resource.prlimit(number, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(number, resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_file_is_left(cli: Cli) -> None:
    """Clients that are connected are served, the health says it, and later clients are served once there are files."""
    running, url = serve(cli, "--ephemeral")
    port = int(url.rpartition(":")[2].partition("/")[0])
    async with connected(url) as client:
        assert "files" not in await client.call("health")
        assert (await client.call("session/create", prompt="hello"))["text"] == "hello"
        with no_more_files(running):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while "files" not in (health := await client.call("health")):
                pass
            assert health["status"] == "degraded"
            assert health["files"]["last_error"].startswith("clients cannot be accepted: ")
            assert (await client.call("session/create", prompt="hello"))["text"] == "hello"
        async with stream:
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    running.process.terminate()
    assert running.end().err.count("clients cannot be accepted") == 1
