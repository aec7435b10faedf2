"""Nodes on one store: every method at a node that does not have the session."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.service.principals import ACME
from tests.support.models import Emit, FunctionModel, reply
from tests.support.waiting import until
from tests.transport.client.gate import Gate
from tests.transport.cluster.nodes import Home, Node, cluster, events_of, node, read_to, shared_store
from tests.transport.rest.clients import client
from warren.actors.supervisor import store_watcher
from warren.base.errors import (
    AgentError,
    CompactionDisabledError,
    InvalidParamsError,
    LeasedError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
    WarrenError,
)
from warren.base.nodes import NodeLoad
from warren.calls.streams import EventReader
from warren.client import connect
from warren.conversation.categories import Gates
from warren.conversation.events import Envelope, RunCompleted, RunStarted, TextDelta, ToolApprovalRequested
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.peers import Peer
from warren.conversation.views import ListedApproval
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolOutput, current_call, tool
from warren.settings.config import Limits, PostgresConfig, StoreConfig
from warren.storage.queries import Holders, LivingNodes, Query
from warren.transport.cluster.moving import MovingLog

pytestmark = pytest.mark.time_limit(60)
RACERS: Final = 300


@pytest.fixture(params=["files", "database"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreConfig | PostgresConfig]:
    """A place for a store, in files and in a database."""
    home: Home = request.param
    with shared_store(home, tmp_path) as made:
        yield made


async def test_turns_and_views_at_another_node(store: StoreConfig | PostgresConfig) -> None:
    """Another node runs turns, shows, labels and follows a session as its own node does; the session does not move."""
    async with cluster(store) as (anna, berta):
        first = await anna.service.create_session("one")
        session_id, heard = first.session_id, list[Envelope]()
        second = await berta.service.start_turn(session_id, "two", on_event=heard.append)
        assert second.text == "two"
        passed_on = [each.service.metrics().total("warren_forwarded_total") for each in (anna, berta)]
        assert passed_on == [0, 1]
        assert (heard[0].seq, heard[-1].seq) == (second.first_seq, second.last_seq)
        assert (type(heard[0].event), type(heard[-1].event)) == (RunStarted, RunCompleted)
        third = await berta.service.start_turn(session_id, "three", mode="queue", idempotency_key="k")
        again = await berta.service.start_turn(session_id, "three", mode="queue", idempotency_key="k")
        assert (third.text, again) == ("three", third)
        assert third.last_seq is not None
        assert await berta.service.read(session_id) == await anna.service.read(session_id)
        assert (await berta.service.read(session_id)).state.message_count == 6
        assert await berta.service.resume(session_id) == await anna.service.resume(session_id)
        assert await berta.service.history(session_id) == await anna.service.history(session_id)
        assert (await berta.service.label(session_id, labels={"a": "b"})).state.labels == {"a": "b"}
        assert (await anna.service.read(session_id)).state.labels == {"a": "b"}
        seen = await events_of(berta.service, session_id, third.last_seq)
        assert seen == await events_of(anna.service, session_id, third.last_seq)
        assert [each.session_id for each in (await berta.service.list()).sessions] == [session_id]
        assert await berta.holder(session_id) == "anna"
        assert berta.service.statistics().live_sessions == 0


async def test_a_link_is_not_let_go_for_what_it_carries(store: StoreConfig | PostgresConfig) -> None:
    """Replies on their way to another node do not count as unread: the turns that it has begun are not given up."""
    gate, answers = Gate(), list[str]()
    async with cluster(store, limits=Limits(max_unread=10_000), gate=gate) as (anna, berta):
        long, short = [(await anna.service.create_session(None)).session_id for _ in range(2)]

        async def turn() -> None:
            answers.append((await berta.service.start_turn(long, "go", model="gate")).text)

        async with trio.open_nursery() as tasks:
            tasks.start_soon(turn)
            await gate.began.wait()
            for text in ("x" * 200_000, "still there?"):
                assert (await berta.service.start_turn(short, text)).text == text
            gate.go.set()
        assert answers == ["one two"]


async def test_inputs_at_another_node(store: StoreConfig | PostgresConfig) -> None:
    """Texts and prompts wait in the inbox at the session's node; they are listed and taken back at another one."""
    gate = Gate()
    async with cluster(store, test=gate) as (anna, berta), trio.open_nursery() as tasks:
        session_id = (await anna.service.create_session(None, model="test")).session_id
        tasks.start_soon(anna.service.start_turn, session_id, "hi")
        await gate.began.wait()
        failed = list[WarrenError]()

        async def wait_in_vain() -> None:
            try:
                await berta.service.start_turn(session_id, "never", mode="queue", idempotency_key="never")
            except AgentError as exc:
                failed.append(exc)

        tasks.start_soon(wait_in_vain)
        while not (waiting := await berta.service.inputs(session_id)):  # noqa: ASYNC110 - an inbox has no event
            await trio.sleep(0.01)
        assert [each.text for each in waiting] == ["never"]
        await berta.service.withdraw(session_id, waiting[0].input_id)
        await until(lambda: failed)
        assert failed[0].cause == "cancelled"
        assert await berta.service.inject_context(session_id, "by the way", idempotency_key="w") is True
        assert await anna.service.inject_context(session_id, "by the way", idempotency_key="w") is False
        assert [each.text for each in await anna.service.inputs(session_id)] == ["by the way"]
        gate.go.set()


async def test_a_call_of_a_tool_is_approved_at_another_node(store: StoreConfig | PostgresConfig) -> None:
    """The request is seen there, the answer counts."""

    @tool
    async def look(at: str) -> str:
        """Look at something."""
        await trio.lowlevel.checkpoint()
        return f"it is a {at}"

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        asked = isinstance(request.messages[-1], UserMessage)
        return reply("", ToolUseBlock("c1", "look", {"at": "tree"})) if asked else reply("done")

    async with cluster(store, test=FunctionModel(answer)) as (anna, berta), trio.open_nursery() as tasks:
        session_id = (
            await anna.service.create_session(None, model="test", tools=[look], approvals=Gates(callback="ask"))
        ).session_id
        results = list[str]()

        async def turn() -> None:
            results.append((await berta.service.start_turn(session_id, "hi")).text)

        tasks.start_soon(turn)
        async with berta.service.subscribe(session_id, after_seq=0) as reader:
            async for envelope in reader:
                if isinstance(envelope.event, ToolApprovalRequested):
                    break
        assert isinstance(envelope.event, ToolApprovalRequested)
        await berta.service.approve_tool(session_id, envelope.event.id, "allow")
        await until(lambda: results)
        assert results == ["done"]


async def test_calls_that_wait_in_memory_are_listed_by_every_node(store: StoreConfig | PostgresConfig) -> None:
    """Each has those of its own turns alone that no store has, the others ask it; pages fit together."""

    @tool
    async def look() -> str:
        """Look at something."""
        await trio.lowlevel.checkpoint()
        return "seen"

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        asked = isinstance(request.messages[-1], UserMessage)
        return reply("", ToolUseBlock("c1", "look", {})) if asked else reply("done")

    async with cluster(store, 3, test=FunctionModel(answer)) as nodes, trio.open_nursery() as tasks:
        sessions = list[str]()
        for node in nodes:
            for durability in ("turn", "step"):
                made = await node.service.create_session(
                    None, model="test", tools=[look], approvals=Gates(callback="ask"), durability=durability
                )
                sessions.append(made.session_id)
                tasks.start_soon(node.service.start_turn, made.session_id, "hi")
        page: Sequence[ListedApproval] = ()
        while len(page) < len(sessions):
            page = (await nodes[0].service.approvals()).approvals
        for node in nodes:
            assert (await node.service.approvals()).approvals == page
            found = [(await node.service.approvals(offset=at, limit=2)).approvals for at in (0, 2, 4, 6)]
            assert tuple(row for each in found for row in each) == page
        assert {each.session_id for each in page[:3]} == set(sessions[::2])  # those in memory come first
        for each in page:
            await nodes[1].service.approve_tool(each.session_id, each.call_id, "allow")
        assert (await nodes[2].service.approvals()).approvals == ()


@pytest.mark.parametrize("early", [True, False])
async def test_a_result_from_outside_comes_to_another_node(store: StoreConfig | PostgresConfig, *, early: bool) -> None:
    """Any node passes it on to that of the session, by its token alone, whether the tool still runs or not."""
    tokens, may_return = list[str](), trio.Event()

    @tool
    async def build() -> ToolOutput:
        """Build."""
        tokens.append(current_call().token(expires=60))
        await may_return.wait()
        return ToolOutput.later(tokens[0])

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        asked = isinstance(request.messages[-1], UserMessage)
        return reply("", ToolUseBlock("c1", "build", {})) if asked else reply("done")

    async with cluster(store, test=FunctionModel(answer)) as (anna, berta), trio.open_nursery() as tasks:
        session_id = (await anna.service.create_session(None, model="test", tools=[build])).session_id
        results = list[str]()

        async def turn() -> None:
            results.append((await anna.service.start_turn(session_id, "hi")).text)

        tasks.start_soon(turn)
        await until(lambda: tokens)
        if not early:
            may_return.set()
            while not (await anna.service.list(turn_state="waiting")).sessions:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.01)
        async with client(berta.port) as http:
            assert (await http.post(f"/complete/{tokens[0]}", json={"result": "built"})).status_code == 200
        may_return.set()
        await until(lambda: results)
        await berta.service.complete_tool(tokens[0], "built")
        with pytest.raises(InvalidParamsError):
            await berta.service.complete_tool(tokens[0], "failed")
        (told,) = [
            each
            for entry in (await berta.service.history(session_id)).messages
            if isinstance(entry.message, ToolResultsMessage)
            for each in entry.message.results
        ]
        assert told.content == "built"
        assert await berta.holder(session_id) == "anna"


async def test_a_tool_of_the_caller_runs_at_the_caller(store: StoreConfig | PostgresConfig) -> None:
    """A turn that another node runs asks the node of the caller for its tools."""

    @tool
    async def look(at: str) -> str:
        """Look at something."""
        await trio.lowlevel.checkpoint()
        return f"it is a {at}"

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if isinstance(last, ToolResultsMessage):
            return reply(last.results[0].content)
        return reply("", ToolUseBlock("c1", "look", {"at": "tree"}))

    async with cluster(store, test=FunctionModel(answer)) as (anna, berta):
        session_id = (await anna.service.create_session(None, model="test")).session_id
        assert (await berta.service.start_turn(session_id, "hi", extra_tools=[look])).text == "it is a tree"


async def test_errors_at_another_node_are_those_of_the_own(store: StoreConfig | PostgresConfig) -> None:
    """Code, cause, message and details are the same."""
    gate = Gate()
    async with cluster(store, test=gate) as nodes, trio.open_nursery() as tasks:
        anna = nodes[0]
        session_id = (await anna.service.create_session(None, model="test")).session_id

        async def same(kind: type[WarrenError], name: str, *args: Any, **kwargs: Any) -> None:
            bodies = list[Any]()
            for each in nodes:
                with pytest.raises(WarrenError) as caught:
                    await getattr(each.service, name)(*args, **kwargs)
                assert type(caught.value).code == kind.code
                bodies.append(caught.value.body())
            assert bodies[0] == bodies[1]

        for unknown in ("resume", "interrupt", "read", "archive"):
            await same(SessionNotFoundError, unknown, "nobody")
        await same(SessionNotFoundError, "start_turn", "nobody", "hi")
        await same(SessionNotFoundError, "start_turn", "nobody", "hi", mode="queue")
        await same(SessionNotRunningError, "interrupt", session_id)
        await same(CompactionDisabledError, "compact", session_id)
        await same(InvalidParamsError, "withdraw", session_id, "x")
        await same(InvalidParamsError, "start_turn", session_id, "hi", temperature=-1)
        await same(InvalidParamsError, "fork", session_id, at=99)
        tasks.start_soon(anna.service.start_turn, session_id, "hi")
        await gate.began.wait()
        await same(SessionBusyError, "start_turn", session_id, "hi")
        await same(InvalidParamsError, "approve_tool", session_id, "x", "allow")
        for each in nodes:
            with pytest.raises(InvalidParamsError, match="after_seq"):
                async with each.service.subscribe(session_id, after_seq=10**9):
                    pass
        gate.go.set()


async def test_peers_and_forks_at_another_node(store: StoreConfig | PostgresConfig) -> None:
    """A message from one node is in the inbox of the session at the other one; a fork needs no lease."""
    async with cluster(store) as (anna, berta):
        one = (await anna.service.create_session("one", peer=Peer("one", ("two",)))).session_id
        two = (await berta.service.create_session("two", peer=Peer("two", ("one",)))).session_id
        assert [each.reachable for each in await berta.service.peers(one)] == [True]
        await berta.service.send_message(one, "two", "hello")
        assert "hello" in (await anna.service.inputs(two))[0].text
        fork = await berta.service.fork(one)
        assert (await anna.service.history(fork.state.session_id)).total == 2
        assert (await anna.holder(one), await anna.holder(two)) == ("anna", "berta")


async def test_a_message_begins_a_turn_at_another_node_at_once(
    store: StoreConfig | PostgresConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the session is told of it, whosever it is, and does not wait until it looks into the store."""
    monkeypatch.setattr(store_watcher, "INTERVAL", 3600.0)
    async with cluster(store) as (anna, berta):
        here, there = anna.service.as_(ACME), berta.service.as_(ACME)
        one = (await here.create_session("one", peer=Peer("one", ("two",), keep_alive=True))).session_id
        two = (await there.create_session("two", peer=Peer("two", ("one",)))).session_id
        async with here.subscribe(one) as reader:
            await there.send_message(two, "one", "hello")
            started = await anext(reader)
            assert isinstance(started.event, RunStarted)
        assert await anna.holder(one) == "anna"


async def test_sessions_end_at_another_node(store: StoreConfig | PostgresConfig) -> None:
    """An archived session ends everywhere, and its followers' streams do; a deleted one is gone everywhere."""
    async with cluster(store) as (anna, berta):
        first = await anna.service.create_session("one")
        second = await anna.service.create_session("two")
        async with berta.service.subscribe(first.session_id, after_seq=0) as reader:
            await berta.service.archive(first.session_id)
            assert [each.seq async for each in reader] == [1, 2, 3, 4, 5, 6]
        for each in (anna, berta):
            assert (await each.service.read(first.session_id)).state.lifecycle == "archived"
        await berta.service.delete(second.session_id)
        await berta.service.delete(second.session_id)
        for each in (anna, berta):
            with pytest.raises(SessionNotFoundError):
                await each.service.read(second.session_id)


async def test_an_interrupt_at_another_node_ends_the_turn(store: StoreConfig | PostgresConfig) -> None:
    """The call returns behind the end of the turn, whose caller hears that it was cancelled."""
    gate, order = Gate(), list[str]()
    async with cluster(store, 3, test=gate) as (anna, berta, clara), trio.open_nursery() as tasks:
        session_id = (await anna.service.create_session(None, model="test")).session_id

        async def turn() -> None:
            with pytest.raises(AgentError) as caught:
                await clara.service.start_turn(session_id, "hi")
            order.append(f"turn {caught.value.cause}")

        tasks.start_soon(turn)
        await gate.began.wait()
        await berta.service.interrupt(session_id)
        view = await anna.service.read(session_id)
        assert (view.state.is_active, gate.calls) == (False, 1)
        await until(lambda: order)
        assert order == ["turn cancelled"]


async def test_one_of_many_racing_turns_runs(store: StoreConfig | PostgresConfig) -> None:
    """300 prompts at three nodes at once: one runs, all others are refused as busy. So they are if nobody has it."""
    gate = Gate()
    async with cluster(store, 3, test=gate, limits=Limits(idle_after=0.0)) as nodes:
        for owned in (True, False):
            gate.began, gate.go = trio.Event(), trio.Event()
            session_id = (await nodes[0].service.create_session(None, model="test")).session_id
            if not owned:
                await nodes[1].until_held_by(session_id, None)
            ends = list[str]()

            async def race(each: Node, session_id: str, ends: list[str]) -> None:
                try:
                    ends.append((await each.service.start_turn(session_id, "hi")).text)
                except WarrenError as exc:
                    ends.append(exc.code.value)
                    if len(ends) == RACERS - 1:
                        gate.go.set()

            with trio.fail_after(50):
                async with trio.open_nursery() as tasks:
                    for each in itertools.islice(itertools.cycle(nodes), RACERS):
                        tasks.start_soon(race, each, session_id, ends)
            assert sorted(ends) == ["SESSION_BUSY"] * (RACERS - 1) + ["one two"]
            assert (await nodes[2].service.read(session_id)).state.message_count == 2
        assert gate.calls == 2


async def test_followers_on_three_nodes_while_the_session_moves(store: StoreConfig | PostgresConfig) -> None:
    """Each of two at each node has every stored event once and in order, over three moves."""
    async with cluster(store, 3, limits=Limits(idle_after=0.0)) as nodes:
        session_id = (await nodes[0].service.create_session("0")).session_id
        found = dict[str, list[Envelope]]()

        async def follow(each: Node, name: str) -> None:
            seen = found[name] = []
            async with connect(each.url) as client, client.subscribe(session_id, after_seq=0) as reader:
                async for envelope in reader:
                    seen.append(envelope)
                    if isinstance(envelope.event, RunCompleted) and envelope.event.result == "3":
                        return

        async with trio.open_nursery() as tasks:
            for each in nodes:
                tasks.start_soon(follow, each, f"{each.name} 1")
                tasks.start_soon(follow, each, f"{each.name} 2")
            for prompt, each in enumerate([nodes[1], nodes[2], nodes[0]], 1):
                await each.until_held_by(session_id, None)
                assert (await each.service.start_turn(session_id, f"{prompt}")).text == f"{prompt}"
        stored = list(map(numbers, await events_of(nodes[2].service, session_id, found["anna 1"][-1].seq)))
        assert len(stored) == 4 * 6
        for seen in found.values():
            assert list(map(numbers, seen)) == stored


def numbers(envelope: Envelope) -> tuple[int, int]:
    """Return the numbers of the events that an envelope stands for, as these turns have no deltas to merge."""
    return envelope.first_seq or envelope.seq, envelope.seq


async def test_a_follower_sees_the_turn_at_the_next_node_while_it_runs(store: StoreConfig | PostgresConfig) -> None:
    """A subscription begins where nobody has the session; when another node takes it, its events come as they are."""
    gate = Gate()
    async with cluster(store, 2, test=gate, limits=Limits(idle_after=0.0)) as (anna, berta):
        session_id = (await anna.service.create_session(None, model="test")).session_id
        await anna.until_held_by(session_id, None)
        async with anna.service.subscribe(session_id) as reader, trio.open_nursery() as tasks:
            tasks.start_soon(berta.service.start_turn, session_id, "hi")
            async for envelope in reader:
                if isinstance(envelope.event, TextDelta):
                    break
            assert isinstance(envelope.event, TextDelta)
            assert (envelope.event.delta, await anna.holder(session_id)) == ("one ", "berta")
            gate.go.set()


async def test_a_follower_leaves_a_node_whose_session_has_gone_also_if_none_has_it(
    store: StoreConfig | PostgresConfig,
) -> None:
    """The node saw the session elsewhere, where it was lost again at once: its followers are not left behind there."""
    gate = Gate()
    async with cluster(store, 2, test=gate, limits=Limits(idle_after=0.0)) as (anna, berta):
        session_id = (await berta.service.create_session(None, model="test")).session_id
        async with anna.service.subscribe(session_id, after_seq=0) as reader, trio.open_nursery() as tasks:
            tasks.start_soon(berta.service.start_turn, session_id, "hi")
            await gate.began.wait()
            followed = await read_to(reader, 3)
            (there,) = berta.service.own.moving  # the moment is too short for the store to show it
            gate.go.set()
            await berta.until_held_by(session_id, None)
            there.find_again()
            await until(lambda: not berta.service.own.moving)
            tasks.start_soon(anna.service.start_turn, session_id, "again")
            while sum(isinstance(each.event, RunCompleted) for each in followed) < 2:
                followed.append(await anext(reader))
        assert await anna.holder(session_id) in ("anna", None)


@attrs.define(eq=False)
class Counting:
    """A store that counts what is read of it.

    Attributes:
        behind: the store.
        read_of: how often each class of queries was asked.
    """

    behind: Any
    read_of: Counter[type] = attrs.field(factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def read(self, query: Query[Any]) -> Any:
        """Ask the store."""
        self.read_of[type(query)] += 1
        return await self.behind.read(query)


async def test_a_look_for_sessions_that_have_moved_asks_for_all_of_them_at_once(
    store: StoreConfig | PostgresConfig,
) -> None:
    """However many are followed, the store is asked twice: who lives, and who has them."""
    async with cluster(store, limits=Limits(idle_after=0.0)) as (anna, berta), AsyncExitStack() as stack:
        followed = [(await anna.service.create_session(None)).session_id for _ in range(20)]
        for each in followed:
            await anna.until_held_by(each, None)
            await stack.enter_async_context(berta.service.subscribe(each, after_seq=0))
        counting = Counting(await berta.service.store())
        await berta.service.look(counting)
        assert counting.read_of == {LivingNodes: 1, Holders: 1}


async def test_the_reader_of_a_forwarded_turn_goes_on_after_it(store: StoreConfig | PostgresConfig) -> None:
    """`on_begin` gets a reader at the first event of the turn, which follows the session until it is closed."""
    async with cluster(store) as (anna, berta):
        session_id = (await anna.service.create_session("one")).session_id
        readers = list[EventReader]()
        result = await berta.service.start_turn(session_id, "two", on_begin=readers.append)
        assert result.first_seq is not None
        assert result.last_seq is not None
        (reader,) = readers
        assert isinstance(reader.log, MovingLog)
        other = reader.another()
        third = await anna.service.start_turn(session_id, "three")
        assert third.last_seq is not None
        expected = await events_of(anna.service, session_id, third.last_seq, result.first_seq - 1)
        for each in (reader, other):
            assert await read_to(each, third.last_seq) == expected
            each.close()


async def test_a_turn_of_another_node_is_streamed(store: StoreConfig | PostgresConfig) -> None:
    """From its first event to its last one, with its result; one that is left early leaves no reader at either node."""
    async with cluster(store) as (anna, berta):
        session_id = (await anna.service.create_session("one")).session_id
        async with berta.service.stream_turn(session_id, "two") as events:
            heard = [envelope async for envelope in events]
            result = await events.result()
        assert (result.text, heard[0].seq, heard[-1].seq) == ("two", result.first_seq, result.last_seq)
        assert heard == await events_of(anna.service, session_id, heard[-1].seq, heard[0].seq - 1)
        async with berta.service.stream_turn(session_id, "three") as events:
            assert (await anext(events)).seq == heard[-1].seq + 1
        assert not berta.service.moving
        await until(lambda: not anna.service.statistics().subscriptions)
        await until(lambda: not berta.service.statistics().subscriptions)


async def test_a_node_does_not_pass_on_for_another_node(store: StoreConfig | PostgresConfig) -> None:
    """A node asks the wrong one: it hears who has the session, and nothing is done; the session is not taken."""
    async with cluster(store, 3) as (anna, berta, clara):
        session_id = (await anna.service.create_session("one")).session_id
        shared = await berta.service.store()
        me = next(each for each in await shared.read(LivingNodes()) if each.name == "clara")
        wrong = berta.service.remote(me)
        with pytest.raises(AgentError) as caught:
            await wrong.start_turn(session_id, "two")
        assert (caught.value.cause, caught.value.retryable) == ("not_owner", True)
        assert caught.value.details["holder"] == "anna"
        with pytest.raises(AgentError) as caught:
            async with wrong.subscribe(session_id):
                pass
        assert caught.value.cause == "not_owner"
        assert (await clara.service.read(session_id)).state.message_count == 2
        assert await clara.holder(session_id) == "anna"


async def test_a_living_holder_is_waited_for_and_not_robbed(tmp_path: Path) -> None:
    """Its gateway cannot be reached while it lives: the call fails as leased, reads come from the store."""
    made = StoreConfig(tmp_path / "store", lease=0.6)
    async with node(made, "anna") as anna, node(made, "berta") as berta:
        session_id = (await anna.service.create_session("one")).session_id
        anna.gateway.cancel()
        with pytest.raises(LeasedError) as caught:
            await berta.service.start_turn(session_id, "two")
        assert (caught.value.retryable, caught.value.details["holder"]) == (True, "anna")
        assert (await berta.service.read(session_id)).state.message_count == 2
        assert await berta.service.inject_context(session_id, "by the way") is True
        assert await berta.holder(session_id) == "anna"
        assert (await anna.service.start_turn(session_id, "two")).text == "two"


async def test_a_full_node_lets_another_one_create(store: StoreConfig | PostgresConfig) -> None:
    """A new session, and a session that nobody has, go to the node with room; if all are full, the refusal says so."""
    gate = Gate()
    async with cluster(store, 2, test=gate, limits=Limits(max_sessions=1, idle_after=0.0)) as (anna, _):
        free = (await anna.service.create_session("free")).session_id
        await anna.until_held_by(free, None)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(lambda: anna.service.create_session("hi", model="test"))
            await gate.began.wait()
            created = await anna.service.create_session("one", idempotency_key="k")
            assert created.text == "one"
            assert await anna.service.create_session("one", idempotency_key="k") == created
            assert (await anna.service.start_turn(free, "two")).text == "two"
            gate.go.set()
    assert NodeLoad(1, 1, 1).full
