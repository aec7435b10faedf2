"""`warren nodes`, and servers that share a store, as processes."""

import json
import signal
from typing import Any

import trio

from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import connected, serve


def nodes(cli: Cli) -> dict[str, Any]:
    """Return the nodes of the store by their names."""
    return {each["name"]: each for each in cli.run("nodes", "list", "--output", "json").data["nodes"]}


async def test_a_node_that_drains_passes_its_sessions_on(cli: Cli) -> None:
    """Its idle sessions go on elsewhere, also for clients that ask it; its turn ends, and then the process."""
    slow = cli.script({"chunks": ["a ", "whole ", "answer"], "chunk_delay": 2})
    often = {"WARREN_STORAGE_LEASE": "1.5s"}  # a node hears of the wish when it renews its leases
    first, at_first = serve(cli, "--node-name", "first", "-m", slow, "--drain", "60s", env=often)
    second, at_second = serve(cli, "--node-name", "second", "-m", "echo", env=often)
    assert not any("draining" in each for each in nodes(cli).values())
    async with connected(at_first) as client, connected(at_second) as other:
        idle = (await client.call("session/create", prompt=None, model="echo"))["session_id"]
        assert (await other.call("turn/start", session_id=idle, prompt="passed on"))["text"] == "passed on"
        busy = (await client.call("session/create", prompt=None))["session_id"]
        await other.call("session/subscribe", session_id=busy)
        turn = await client.send("turn/start", session_id=busy, prompt="go")
        await other.event("text_delta")
        at_server = "--server", at_second.removesuffix("/ws")
        listed = await trio.to_thread.run_sync(cli.run, "nodes", "list", "--output", "json", *at_server)
        assert {each["name"]: each["address"] for each in listed.data["nodes"]} == {
            "first": at_first.removesuffix("/ws"),
            "second": at_second.removesuffix("/ws"),
        }
        refused = await trio.to_thread.run_sync(cli.run, "nodes", "drain", "first", *at_server)
        assert "this needs the scope tenant:admin" in one_line(refused, 1)
        assert "first is asked" in (await trio.to_thread.run_sync(cli.run, "nodes", "drain", "first")).out
        while not (await trio.to_thread.run_sync(nodes, cli))["first"].get("draining"):
            pass
        # The node ends none of this: the other one begins these turns, one of them for a client of the first.
        assert (await other.call("turn/start", session_id=idle, prompt="there"))["text"] == "there"
        assert (await client.call("turn/start", session_id=idle, prompt="from here"))["text"] == "from here"
        while (message := await client.receive()).get("id") != turn:
            pass
        assert message["result"]["text"] == "a whole answer"
        await other.event("run_completed")
        ended = await trio.to_thread.run_sync(first.end)
        assert (ended.code, ended.err) == (0, "")
        assert (await other.call("turn/start", session_id=busy, prompt="go on", model="echo"))["text"] == "go on"
    assert list(nodes(cli)) == ["second"]
    noted = [line.split("\t")[3:5] for line in cli.run("audit", "--action", "drain").out.splitlines()]
    assert noted == [["drain", "refused"], ["drain", "done"]]
    second.signal(signal.SIGTERM)
    assert second.end().code == 0


def test_a_node_that_is_not_there_cannot_drain(cli: Cli) -> None:
    """The error names it, and says where the names are."""
    cli.run("run", "hello", "-m", "echo")
    assert "no living node has the name 'web'" in one_line(cli.run("nodes", "drain", "web"), 1)


def test_a_list_without_nodes(cli: Cli) -> None:
    """A store that nobody has open has none; a folder without a store is an error."""
    assert one_line(cli.run("nodes", "list"), 1).startswith("Error: there is no store at .rkat")
    cli.run("run", "hello", "-m", "echo")
    listed = cli.run("nodes", "list")
    assert (listed.code, listed.out, listed.err) == (0, "", "no process has the store open\n")
    assert json.loads(cli.run("nodes", "list", "--output", "json").out) == {"nodes": []}


def test_a_node_needs_a_store(cli: Cli) -> None:
    """The error names the option that asked for one."""
    refused = one_line(cli.start("serve", "--port", "0", "--ephemeral", "--node-name", "web").end(), 2)
    assert "node_name: nodes share a store, and there is none" in refused
    bad = one_line(cli.start("serve", "--port", "0", "--node-address", "here").end(), 2)
    assert "node_address: 'here' is not like ws://10.0.0.5:8420" in bad


def test_a_load_on_two_nodes_keeps_all_promises(cli: Cli) -> None:
    """Clients of both, which lose connections and follow sessions of the other node, and the check at the end."""
    (first, at_first), (second, at_second) = (serve(cli, "--node-name", name, "-m", "echo") for name in ("a", "b"))
    gateways = (at_first.removesuffix("/ws"), at_second.removesuffix("/ws"))
    mix = "--mix", "subscribers=0.5,disconnects=0.2,busy=0.2"
    ran = cli.run("load", "run", *gateways, "--sessions", "10", "--turns", "8", "-m", "echo", *mix, "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.data["violations"] == []
    assert ran.data["figures"]["turns"] > 0
    for running in (first, second):
        running.signal(signal.SIGTERM)
        assert running.end().code == 0
