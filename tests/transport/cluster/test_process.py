"""Nodes as processes: one is killed while its turns run, and the other one goes on."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import attrs
import pytest
import trio

from tests.support.checks import assert_valid_stream, counted, numbers
from tests.support.postgres import database
from tests.transport.cli.process import MODULE, Cli, Running
from tests.transport.cluster.nodes import Home, events_of
from warren.base.errors import AgentError
from warren.client import RemoteService, connect
from warren.conversation.events import TERMINAL, Envelope, RunCompleted, SessionMoved, TextDelta, TurnResumed
from warren.conversation.messages import UserMessage
from warren.conversation.views import TurnResult

CHUNKS: Final = [f"{number} " for number in range(20)]
SLOW: Final = {"chunks": CHUNKS, "chunk_delay": 0.2}
"""An answer of four seconds: time enough to kill its node."""


@contextmanager
def place(home: Home) -> Iterator[str]:
    """Yield the place of a store for the command line."""
    with nullcontext("kept") if home == "files" else database() as made:
        yield made


OTHER_CLOCK: Final = """
import sys, time
seconds, true = float(sys.argv.pop(1)), time.time
time.time = lambda: true() + seconds
from warren.transport.cli import main
sys.exit(main())
"""


def serve(cli: Cli, store: str, name: str, *, clock_ahead: int = 0) -> tuple[Running, str]:
    """Start a node with the settings of `config.toml`; return it and its address."""
    settings = ("--config", "config.toml", "--store", store, "--node-name", name)
    python = ("-c", OTHER_CLOCK, str(clock_ahead)) if clock_ahead else MODULE
    running = cli.start("serve", "--port", "0", "--model", "echo", *settings, python=python)
    return running, running.read_until("\n").split()[-1]


async def prompts(service: RemoteService, session_id: str) -> list[str]:
    """Return the prompts of a session's stored turns."""
    page = await service.history(session_id, limit=1000)
    return [str(each.message.content) for each in page.messages if isinstance(each.message, UserMessage)]


@attrs.define(eq=False)
class Follower:
    """A subscriber of one session, at the node that goes on.

    Attributes:
        seen: the events so far.
        begun: set when the turn runs that will be lost.
        over: set behind the turn that comes after it.
    """

    seen: list[Envelope] = attrs.field(factory=list)
    begun: trio.Event = attrs.field(factory=trio.Event)
    over: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, service: RemoteService, session_id: str) -> None:
        """Follow the session."""
        async with service.subscribe(session_id, after_seq=0) as reader:
            async for envelope in reader:
                self.seen.append(envelope)
                if isinstance(envelope.event, TextDelta) and envelope.event.delta.startswith("0 "):
                    self.begun.set()
                if isinstance(envelope.event, RunCompleted) and envelope.event.result == "after":
                    self.over.set()
                    return


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("home", ["files", "database"])
async def test_the_other_node_goes_on_when_one_is_killed(cli: Cli, home: Home) -> None:
    """Kill -9 of the holder while turns run.

    Acknowledged turns are there once, a prompt under a key is taken once and answered, and a subscriber at the other
    node has every stored event once and in order, and hears which events were shown and are lost.
    """
    slow, follower = cli.script(SLOW), Follower()
    (cli.folder / "config.toml").write_text(f'[models."{slow}"]\n', encoding="utf-8")
    with place(home) as store:
        anna, here = serve(cli, store, "anna")
        berta, there = serve(cli, store, "berta")
        async with connect(here) as at_anna, connect(there) as at_berta, trio.open_nursery() as tasks:
            first = (await at_anna.create_session("0")).session_id
            second = (await at_anna.create_session("0")).session_id
            for number in range(1, 6):
                assert (await at_berta.start_turn(first, f"{number}")).text == f"{number}"
            tasks.start_soon(follower.run, at_berta, first)
            tasks.start_soon(lost_turn, at_berta, first, slow)
            results = list[TurnResult]()
            tasks.start_soon(kept_turn, at_berta, second, slow, results)
            await follower.begun.wait()
            while not (await at_berta.read(second)).state.is_active:  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.01)
            anna.signal(signal.SIGKILL)
            assert (await at_berta.start_turn(first, "after", mode="queue")).text == "after"
            await follower.over.wait()
            while not results:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            await kept_turn(at_berta, second, slow, results)
            assert [each.text for each in results] == ["".join(CHUNKS)] * 2
            assert await prompts(at_berta, first) == ["0", "1", "2", "3", "4", "5", "after"]
            assert await prompts(at_berta, second) == ["0", "kept"]
            check(follower.seen, await events_of(at_berta, first, follower.seen[-1].seq))
        berta.signal(signal.SIGTERM)
        assert berta.end().code == 0


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("home", ["files", "database"])
async def test_a_turn_goes_on_at_the_other_node(cli: Cli, home: Home) -> None:
    """A follower there is told what it was shown in vain, and gets the rest of the turn; no end is made up for it."""
    model = cli.script({"text": "let me see ", "tool_calls": [{"name": "nothing"}]}, SLOW)
    (cli.folder / "config.toml").write_text(f'[models."{model}"]\n', encoding="utf-8")
    seen, results = list[Envelope](), list[TurnResult]()
    with place(home) as store:
        anna, here = serve(cli, store, "anna")
        berta, there = serve(cli, store, "berta")
        async with connect(here) as at_anna, connect(there) as at_berta, trio.open_nursery() as tasks:
            session_id = (await at_anna.create_session(None)).session_id
            tasks.start_soon(kept_turn, at_berta, session_id, model, results)
            async with at_berta.subscribe(session_id, after_seq=0) as events:
                async for envelope in events:
                    seen.append(envelope)
                    if anna.process.poll() is None and "4 " in text_of(seen):
                        anna.signal(signal.SIGKILL)
                    if isinstance(envelope.event, TERMINAL):
                        break
            stored = await events_of(at_berta, session_id, seen[-1].seq)
        berta.signal(signal.SIGTERM)
        assert berta.end().code == 0
    assert [each.text for each in results] == ["".join(CHUNKS)]
    (marker,) = [each for each in seen if isinstance(each.event, SessionMoved)]
    assert isinstance(marker.event, SessionMoved)
    shown = [each for each in seen if each is not marker]
    assert_valid_stream(shown)
    assert [type(each.event).__name__ for each in shown if isinstance(each.event, TERMINAL)] == ["RunCompleted"]
    (resumed,) = [each for each in shown if isinstance(each.event, TurnResumed)]
    assert isinstance(resumed.event, TurnResumed)
    assert resumed.event.kept_seq < marker.event.first_lost <= marker.event.last_lost < resumed.seq
    lost = range(marker.event.first_lost, marker.event.last_lost + 1)
    assert numbers([each for each in shown if each.seq not in lost]) == numbers(stored)
    assert text_of(counted(shown)) == text_of(counted(stored)) == "let me see " + "".join(CHUNKS)


def text_of(events: list[Envelope]) -> str:
    """Return the text that deltas have brought."""
    return "".join(each.event.delta for each in events if isinstance(each.event, TextDelta))


async def lost_turn(service: RemoteService, session_id: str, model: str) -> None:
    """Start a turn whose node is killed: its outcome is unknown."""
    with pytest.raises(AgentError) as caught:
        await service.start_turn(session_id, "lost", model=model)
    assert caught.value.cause == "connection_lost"


async def kept_turn(service: RemoteService, session_id: str, model: str, results: list[TurnResult]) -> None:
    """Start a turn under a key, which another node takes up if its node is killed."""
    results.append(await service.start_turn(session_id, "kept", mode="queue", idempotency_key="k", model=model))


def check(seen: list[Envelope], stored: list[Envelope]) -> None:
    """Check a follower's events against the log: all of it once and in order, and the lost ones named."""
    (marker,) = [each for each in seen if isinstance(each.event, SessionMoved)]
    assert isinstance(marker.event, SessionMoved)
    events = [each for each in seen if each is not marker]
    lost = range(marker.event.first_lost, marker.event.last_lost + 1)
    kept = {each.seq for each in stored}
    shown = [seq for each in events for seq in range(each.first_seq or each.seq, each.seq + 1)]
    assert shown == sorted(set(shown))
    assert set(lost) == {seq for seq in shown if seq in lost}
    assert [each for each in events if each.seq in kept] == stored
    told = [each for each in events if each.seq not in kept and each.seq not in lost]
    assert [type(each.event).__name__ for each in told] == ["RunFailed"]


@pytest.mark.time_limit(120)
async def test_the_clocks_of_two_nodes_may_differ(cli: Cli) -> None:
    """Each reaches the sessions of the other, and the health of the one that is wrong and the doctor say so."""
    (cli.folder / "config.toml").write_text("", encoding="utf-8")
    with database() as store:
        anna, here = serve(cli, store, "anna")
        berta, there = serve(cli, store, "berta", clock_ahead=600)
        async with connect(here) as at_anna, connect(there) as at_berta:
            for one, other in ((at_anna, at_berta), (at_berta, at_anna)):
                session_id = (await one.create_session("0")).session_id
                assert (await other.start_turn(session_id, "1")).text == "1"
                assert (await one.start_turn(session_id, "2")).text == "2"
                assert (await other.read(session_id)).state.lifecycle == "live"
            assert (await at_anna.health()).status == "ok"
            health = (await at_berta.health()).store
            while health is None or health.clock_ahead is None:
                health = (await at_berta.health()).store
            assert (health.status, round(health.clock_ahead)) == ("degraded", -600)
            assert health.last_error == "the clock of the server is 600 s behind this machine's"
            told = ""
            while "that of berta" not in told:  # its status is renewed once a second
                told = (await trio.to_thread.run_sync(lambda: cli.run("doctor", "--store", store))).out
            assert "the clock of the server is 600 s behind that of berta" in told
            assert "that of anna" not in told
        for each in (anna, berta):
            each.signal(signal.SIGTERM)
            assert each.end().code == 0
