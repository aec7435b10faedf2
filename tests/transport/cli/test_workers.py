"""`warren serve --workers N`: processes that share one port, and the parent that keeps them."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.transport.cli.process import LIMIT, SLOW, Cli, Running, one_line
from tests.transport.cli.serving import connected, lives, serve, workers_of
from tests.transport.cluster.balancing import without_keep_alive
from tests.transport.cluster.nodes import free_port
from tests.transport.mcp.clients import ACCEPT, HELLO, PING
from tests.transport.rest.clients import client as rest_client
from warren.actors.supervision import Restarts
from warren.settings.config import Intensity
from warren.transport.cli.serve.workers import Workers

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the workers are found in /proc")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that has no event."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def replaced(parent: Running, killed: int) -> bool:
    """Return whether a worker's place has been taken by another."""
    return len(now := workers_of(parent)) == 2 and killed not in now


async def test_a_worker_that_dies_is_started_again(cli: Cli) -> None:
    """The other one serves on meanwhile; what was acknowledged is there; stderr says which one has died."""
    running, url = serve(cli, "--workers", "2", "-m", "echo")
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="before"))["session_id"]
    killed, other = workers_of(running)
    os.kill(killed, signal.SIGKILL)
    async with connected(url) as client:
        assert (await client.call("turn/start", session_id=session, prompt="meanwhile"))["text"] == "meanwhile"
    await trio.to_thread.run_sync(wait_until, lambda: replaced(running, killed))
    assert other in workers_of(running)
    async with connected(url) as client:
        assert (await client.call("turn/start", session_id=session, prompt="after"))["text"] == "after"
    running.signal(signal.SIGTERM)
    ended = await trio.to_thread.run_sync(running.end)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "WARNING: worker 1 was ended by SIGKILL: it is started again\n"
    assert cli.run("sessions", "show", "last").out.count("assistant") == 3


async def test_the_log_as_json(cli: Cli) -> None:
    """Each line on stderr is an object, that of the parent, too."""
    running, _url = serve(cli, "--workers", "2", "-m", "echo", "--log-format", "json")
    killed, _ = workers_of(running)
    os.kill(killed, signal.SIGKILL)
    await trio.to_thread.run_sync(wait_until, lambda: replaced(running, killed))
    running.signal(signal.SIGTERM)
    ended = await trio.to_thread.run_sync(running.end)
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("warning", "worker 1 was ended by SIGKILL: it is started again")
    ]


async def test_a_signal_reaches_a_worker_that_is_just_being_started() -> None:
    """The command ends, and does not wait for a worker that it has told nothing."""
    endless = [sys.executable, "-c", "import signal; print('serves', flush=True); signal.pause()"]
    workers = Workers(endless, (), (), Restarts(Intensity()))
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nursery.start, partial(workers.run, 1))
            await trio.testing.wait_all_tasks_blocked()
            workers.signal(signal.SIGTERM)


LEAVES_A_PROCESS = """
import os, pathlib, signal, subprocess, sys
mark = pathlib.Path(sys.argv[1])
print("serves", flush=True)
if mark.exists():
    mark.with_name("again").touch()
    signal.pause()
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
left = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
left.stdout.readline()
mark.write_text(str(left.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_worker_is_started_again_whatever_the_dead_one_has_left(tmp_path: Path) -> None:
    """Its successor waits for no process of the dead worker, and signals none."""
    mark = tmp_path / "left"
    workers = Workers([sys.executable, "-c", LEAVES_A_PROCESS, str(mark)], (), (), Restarts(Intensity()))
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            await nursery.start(workers.run, 1)
            while not mark.with_name("again").exists():  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.02)
            left = int(mark.read_text())
            try:
                assert lives(left)
            finally:
                os.kill(left, signal.SIGKILL)
                workers.signal(signal.SIGTERM)


async def test_one_scrape_has_the_metrics_of_all_workers(cli: Cli) -> None:
    """Whichever of them answers; a worker that dies takes its own series along, and its successor begins them anew."""
    port = free_port()
    running, url = serve(cli, "--workers", "2", "-m", "echo", "--metrics-port", str(port))

    async def turns() -> dict[str, float]:
        text = (await http.get("/metrics")).text
        samples = [each for family in parsed(text) for each in family.samples if each.name == "warren_turns_total"]
        return {each.labels["worker"]: each.value for each in samples if each.labels["outcome"] == "completed"}

    async def until(condition: Callable[[dict[str, float]], bool]) -> None:
        with trio.fail_after(LIMIT):
            while not condition(await turns()):  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.05)

    async with rest_client(port) as http:
        await until(lambda _: True)
        for _ in range(6):
            async with connected(url) as client:
                await client.call("session/create", prompt="hello")
                assert (await client.call("metrics/history"))["processes"] == 2
        for _ in range(4):
            assert sum((await turns()).values()) == 6
        first = workers_of(running)[0]
        os.kill(first, signal.SIGKILL)
        await trio.to_thread.run_sync(wait_until, lambda: replaced(running, first))
        await until(lambda found: found.get("1", 0.0) == 0)
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0


async def test_the_first_signal_ends_all_in_order(cli: Cli) -> None:
    """A turn that runs has its time, its client gets the answer, and no worker is left."""
    script = cli.script({"chunks": ["a ", "whole ", "answer"], "chunk_delay": 0.3})
    running, url = serve(cli, "--workers", "2", "-m", script, "--drain", "20s")
    workers = workers_of(running)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt=None))["session_id"]
        turn = await client.send("turn/start", session_id=session, prompt="go")
        await client.event("text_delta")
        running.signal(signal.SIGTERM)
        while (message := await client.receive()).get("id") != turn:
            pass
        assert message["result"]["text"] == "a whole answer"
    assert (await trio.to_thread.run_sync(running.end)).code == 0
    assert not any(map(lives, workers))


def test_a_signal_before_all_serve(cli: Cli) -> None:
    """The command ends in order, and says nothing of a server that never was there."""
    running = cli.start("serve", "--port", "0", "--workers", "2", "-m", "echo", "--store", "store")
    wait_until(lambda: len(workers_of(running)) == 2)
    running.signal(signal.SIGTERM)
    ended = running.end()
    assert (ended.code, ended.out, ended.err) == (0, "", "")


async def test_the_second_signal_ends_all_at_once(cli: Cli) -> None:
    """No worker outlives it, also if a turn runs that would take long."""
    running, url = serve(cli, "--workers", "2", "-m", cli.script(SLOW), "--drain", "60s")
    workers = workers_of(running)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt=None))["session_id"]
        await client.send("turn/start", session_id=session, prompt="go")
        await client.event("text_delta")
        running.signal(signal.SIGTERM)
        while (await client.call("health"))["status"] == "ok":  # noqa: ASYNC110 - another process has no event
            await trio.sleep(0.02)
        running.signal(signal.SIGTERM)
        assert (await trio.to_thread.run_sync(running.end)).code == -signal.SIGTERM
    await trio.to_thread.run_sync(wait_until, lambda: not any(map(lives, workers)))


def test_workers_end_with_their_parent(cli: Cli) -> None:
    """Also with one that is killed: nobody would start them again, or end them."""
    running, _url = serve(cli, "--workers", "2", "-m", "echo")
    workers = workers_of(running)
    running.process.kill()
    wait_until(lambda: not any(map(lives, workers)))


def test_workers_that_die_too_often_end_the_command(cli: Cli) -> None:
    """A supervisor above it has to see that something is wrong."""
    once = {"WARREN_INTENSITY_RESTARTS": "1", "WARREN_INTENSITY_SECONDS": "600"}
    running, _url = serve(cli, "--workers", "2", "-m", "echo", env=once)
    first, second = workers_of(running)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: replaced(running, first))
    os.kill(second, signal.SIGKILL)
    ended = running.end()
    assert ended.code == 1
    assert "workers died too often; the last one, worker 2, was ended by SIGKILL" in ended.err


def test_workers_need_a_store(cli: Cli) -> None:
    """Sessions in the memory of one process are no use to another."""
    refused = cli.start("serve", "--port", "0", "--workers", "2", "--ephemeral").end()
    assert "workers: nodes share a store, and there is none" in one_line(refused, 2)


def test_a_store_that_cannot_be_opened_is_told_once(cli: Cli) -> None:
    """The first worker says why, and its exit code is that of the command."""
    (cli.folder / "store").write_text("no folder")
    alone = cli.start("serve", "--port", "0", "--store", "store", "-m", "echo").end()
    ended = cli.start("serve", "--port", "0", "--store", "store", "-m", "echo", "--workers", "2").end()
    assert one_line(ended, alone.code) == alone.err


async def test_any_worker_tells_of_all(cli: Cli) -> None:
    """The health has the sum of all; while one is stopped and cannot say how it is, it is degraded."""
    running, url = serve(cli, "--workers", "2", "-m", "echo")
    async with connected(url) as client:
        await client.call("session/create", prompt="one")
        health = await client.call("health")
        assert (health["status"], health["processes"], health["live_sessions"]) == ("ok", 2, 1)
        answers = []
        for stopped in workers_of(running):  # one of them has this client, and answers nothing while it is stopped
            os.kill(stopped, signal.SIGSTOP)
            with trio.move_on_after(3):
                answers.append(await client.call("health"))
            os.kill(stopped, signal.SIGCONT)
        assert ("degraded", 1) in [(each["status"], each.get("processes", 1)) for each in answers]
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0


# The client's own HTTP library leaves generators behind.
@pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
)
async def test_an_mcp_session_is_one_at_all_workers(cli: Cli) -> None:
    """Each request on a connection of its own finds it; once its worker is killed its id gets 404, and others go on."""
    running, socket = serve(cli, "--workers", "3", "-m", "echo")
    url = socket.replace("ws:", "http:").removesuffix("ws") + "mcp"
    async with without_keep_alive(url) as (program, statuses):
        session = (await program.ask("warren_run", prompt="0"))["session_id"]
        for number in range(40):
            answer = await program.ask("warren_resume", session_id=session, prompt=f"{number}")
            assert answer["text"] == f"{number}"
    assert set(statuses) == {200, 202}

    killed = workers_of(running)[0]
    async with httpx.AsyncClient(headers={**ACCEPT, "connection": "close"}, timeout=30) as http:
        begun = [(await http.post(url, json=HELLO)).headers["mcp-session-id"] for _ in range(12)]
        os.kill(killed, signal.SIGKILL)
        found = Counter[tuple[int, str]]()
        for each in begun * 3:
            answer = await http.post(url, json=PING, headers={"mcp-session-id": each})
            found[answer.status_code, each.partition(".")[0]] += 1
        assert {status for status, _ in found} == {200, 404}
        assert len({node for status, node in found if status == 404}) == 1
        assert {node for status, node in found if status == 404}.isdisjoint(
            {node for status, node in found if status == 200}
        )
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0
