"""A node is killed around the answer to a call that waits: the call has it once, whoever goes on with the turn."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import trio

from tests.promises.waiting_nodes import Node, Nodes
from tests.support.asking import ask
from tests.support.postgres import database
from tests.transport.cluster.nodes import free_port
from warren.calls.facade import SessionService

Kind = Literal["allow", "deny", "result"]
ENDS = {"allow": "heard: paid", "deny": "heard: not run: it was refused: too dear", "result": "heard: built"}


@pytest.fixture(params=["files", "postgres"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """Return the nodes of a store in files, and then of one in a database."""
    if request.param == "files":
        yield Nodes(tmp_path / "store", tmp_path)
    else:
        with database() as url:
            yield Nodes(url, tmp_path)


async def waiting(nodes: Nodes, node: Node, kind: Kind) -> tuple[str, Callable[[SessionService], Awaitable[None]]]:
    """Begin a turn that waits; return its session, and what gives a service the answer."""
    session_id = (await node.service.create_session(None)).session_id
    async with trio.open_nursery() as nursery:
        ask(nursery, node.service.start_turn, session_id, "call later" if kind == "result" else "call pay")
        await node.until(session_id, lambda state: state.turn is not None and state.turn.state == "waiting")
        nursery.cancel_scope.cancel()
    if kind == "result":
        token = nodes.runs[-1]["token"]
        return session_id, lambda service: service.complete_tool(token, "built")
    reason = None if kind == "allow" else "too dear"
    return session_id, lambda service: service.approve_tool(session_id, "call-0", kind, reason=reason)


@pytest.mark.parametrize("kind", ["allow", "deny", "result"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_around_the_answer(nodes: Nodes, kind: Kind, when: str) -> None:
    """A stored answer needs no sender any more; one that was not stored is sent again, and counts then."""
    async with nodes.serving(crash=(f"{when} an answer is stored", 1)) as first:
        session_id, answer = await waiting(nodes, first, kind)
        assert await first.dies_within(partial(answer, first.service))
    async with nodes.serving() as second:
        if when == "before":
            await second.until(session_id, lambda state: state.turn is not None and state.turn.state == "waiting")
            await answer(second.service)
        assert await second.until_said(session_id, 1) == [ENDS[kind]]
        await answer(second.service)
        assert await second.results(session_id) == [ENDS[kind].removeprefix("heard: ")]
    assert len(nodes.runs) == (0 if kind == "deny" else 1)


@pytest.mark.parametrize("kind", ["allow", "deny", "result"])
async def test_the_node_that_takes_the_answer_dies(nodes: Nodes, kind: Kind) -> None:
    """Another node goes on, and nobody sends the answer again."""
    crash = ("after an answer is stored", 1)
    async with (
        nodes.serving(name="a", port=free_port()) as a,
        nodes.serving(name="b", port=free_port(), crash=crash) as b,
    ):
        session_id, answer = await waiting(nodes, b, kind)
        assert await b.dies_within(partial(answer, b.service))
        assert await a.until_said(session_id, 1) == [ENDS[kind]]
        await answer(a.service)
    assert len(nodes.runs) == (0 if kind == "deny" else 1)


async def test_a_kill_as_the_allowed_call_begins(nodes: Nodes) -> None:
    """The model is told that the call may have run; it does not run again, and nobody is asked again."""
    async with nodes.serving(crash=("before a tool runs", 1)) as first:
        session_id, answer = await waiting(nodes, first, "allow")
        assert await first.dies_within(partial(answer, first.service))
    async with nodes.serving() as second:
        (said,) = await second.until_said(session_id, 1)
        assert said.startswith("heard: not known: the process ended while this call ran")
        await answer(second.service)
    assert nodes.runs == []
