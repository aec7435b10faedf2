"""Nodes are killed while calls of them run in the background: each result enters its session once, at some node."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.promises.waiting_nodes import Node, Nodes
from tests.support.postgres import database
from tests.transport.cluster.nodes import free_port
from warren.calls.turns import TurnCall


@pytest.fixture(params=["files", "postgres"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """Return the nodes of a store in files, and then of one in a database."""
    if request.param == "files":
        yield Nodes(tmp_path / "store", tmp_path)
    else:
        with database() as url:
            yield Nodes(url, tmp_path)


async def told(node: Node, session_id: str) -> list[str]:
    """Return the results that have entered a session."""
    inputs = await node.inputs(session_id)
    return [each.partition("\n")[2] for each in inputs if "which ran in the background, has" in each]


@pytest.mark.parametrize("restart", ["replay", "ask", "report"])
async def test_a_kill_while_a_call_runs(nodes: Nodes, restart: str) -> None:
    """The next process goes on with it as its tool says; the result enters once, and begins one turn."""
    async with nodes.serving() as first:
        session_id = (await first.service.create_session(None)).session_id
        assert "it runs in the background" in (await first.service.start_turn(session_id, f"call {restart}")).text
        await nodes.until_runs(1)
        await first.kill()
    async with nodes.serving() as second:
        if restart == "ask":
            (asked,) = await second.until(session_id, lambda state: state.pending_approvals)
            assert (asked.call_id, asked.may_have_run) == ("call-0", True)
            assert [each.call_id for each in (await second.service.approvals()).approvals] == ["call-0"]
            await second.service.approve_tool(session_id, "call-0", "allow")
        if restart != "report":
            before, again = await nodes.until_runs(2)
            assert before["key"] == again["key"]
            assert before["pid"] != again["pid"]
        nodes.go()
        await second.until_said(session_id, 2)
        (result,) = await told(second, session_id)
        assert result.startswith("not known" if restart == "report" else f"{restart} has worked")
        await second.kill()
    async with nodes.serving() as third:
        assert (await third.service.start_turn(session_id, "and now")).text == "heard: and now"
        assert len(await told(third, session_id)) == 1
    assert len(nodes.runs) == (1 if restart == "report" else 2)


@pytest.mark.parametrize("restart", ["replay", "report"])
async def test_the_other_node_goes_on(nodes: Nodes, restart: str) -> None:
    """Nobody asks it to."""
    async with nodes.serving(name="a", port=free_port()) as a, nodes.serving(name="b", port=free_port()) as b:
        session_id = (await a.service.create_session(None)).session_id
        await a.service.start_turn(session_id, f"call {restart}")
        await nodes.until_runs(1)
        (running,) = (await b.state(session_id)).background
        assert running.call_id == "call-0"
        await a.kill()
        if restart == "replay":
            before, again = await nodes.until_runs(2)
            assert (before["key"], again["pid"]) == (again["key"], b.process.pid)
        nodes.go()
        await b.until_said(session_id, 2)
        (result,) = await told(b, session_id)
        assert result.startswith("not known" if restart == "report" else "replay has worked")


async def test_a_result_from_outside_at_the_other_node(nodes: Nodes) -> None:
    """It comes where the call does not wait; and after the node where it waits was killed."""
    async with nodes.serving(name="a", port=free_port()) as a, nodes.serving(name="b", port=free_port()) as b:
        sessions = [(await a.service.create_session(None)).session_id for _ in range(2)]
        tokens = []
        for number, session_id in enumerate(sessions, 1):
            await a.service.start_turn(session_id, "call elsewhere")
            tokens.append((await nodes.until_runs(number))[-1]["token"])
        await b.service.complete_tool(tokens[0], "done before")
        await b.until_said(sessions[0], 2)
        await b.service.complete_tool(tokens[0], "done before")
        await a.kill()
        await b.service.complete_tool(tokens[1], "done after")
        await b.until_said(sessions[1], 2)
        for session_id, result in zip(sessions, ["done before", "done after"], strict=True):
            assert await told(b, session_id) == [result]
        await b.service.complete_tool(tokens[1], "done after")
        await trio.sleep(0.2)
        assert [len(await b.until_said(session_id, 2)) for session_id in sessions] == [2, 2]
    assert len(nodes.runs) == 2


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_the_session_ends_at_the_other_node(nodes: Nodes, how: str) -> None:
    """The node that has the call ends it; the next process finds nothing to go on with."""
    async with nodes.serving(name="a", port=free_port()) as a, nodes.serving(name="b", port=free_port()) as b:
        session_id = (await a.service.create_session(None)).session_id
        await a.service.start_turn(session_id, "call replay")
        await nodes.until_runs(1)
        await getattr(b.service, how)(session_id)
        await a.kill()
        nodes.go()
        await trio.sleep(3)  # longer than a lease
    async with nodes.serving():
        await trio.sleep(0.5)
    assert len(nodes.runs) == 1


async def test_the_question_whether_a_call_runs_again(nodes: Nodes) -> None:
    """Every node lists it; it outlives the node that asks it, and the node that stored the decision."""
    async with nodes.serving() as first:
        session_id = (await first.service.create_session(None)).session_id
        await first.service.start_turn(session_id, "call ask")
        await nodes.until_runs(1)
        await first.kill()
    nodes.go()
    async with nodes.serving(name="a", port=free_port()) as a, nodes.serving(name="b", port=free_port()) as b:
        (asked,) = await a.until(session_id, lambda state: state.pending_approvals)
        for each in (a, b):
            (listed,) = (await each.service.approvals()).approvals
            assert (listed.session_id, listed.since, listed.may_have_run) == (session_id, asked.since, True)
        await a.kill()
        await b.kill()
    async with nodes.serving(crash=("after an answer is stored", 1)) as third:
        (again,) = await third.until(session_id, lambda state: state.pending_approvals)
        assert again.since == asked.since
        assert await third.dies_within(partial(third.service.approve_tool, session_id, "call-0", "allow"))
    assert len(nodes.runs) == 1
    async with nodes.serving() as fourth:
        await fourth.until_said(session_id, 2)
        assert await told(fourth, session_id) == ["ask has worked"]
    assert len(nodes.runs) == 2


@pytest.mark.parametrize("transaction", range(2, 6))
async def test_a_kill_after_each_transaction(nodes: Nodes, transaction: int) -> None:
    """The call runs twice at most, under one key; its result enters once, in the same turn or in the next one."""
    nodes.go()
    begun = partial(TurnCall, prompt="call replay", mode="queue", idempotency_key="one")
    async with nodes.serving(crash=("after a transaction", transaction)) as first:
        session_id = (await first.service.create_session(None)).session_id
        assert await first.dies_within(partial(first.service.perform, begun(session_id)))
    async with nodes.serving() as second:
        await second.service.perform(begun(session_id))
        with trio.fail_after(30):
            while await second.waits(session_id) or not await told(second, session_id):  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.05)
        assert await told(second, session_id) == ["replay has worked"]
    assert len(nodes.runs) in (1, 2)
    assert len({each["key"] for each in nodes.runs}) == 1
