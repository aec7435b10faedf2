"""Calls whose work goes on elsewhere, such as tasks of MCP servers: they are looked at, and their turn suspends."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import apsw
import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names
from tests.support.crashing import actor_of
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, replay, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.actors.tools.session_tools import RuntimeServers
from warren.base.errors import BudgetExhaustedError, SessionBusyError, StoreError
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Handed, Tool, ToolError, Unfinished, asking, current_call, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Commit

if TYPE_CHECKING:
    from warren.actors.tools.mcp.pool import McpPool

pytestmark = pytest.mark.virtual_time
DAY = 24 * 3600.0


@attrs.define(eq=False)
class Yard:
    """A builder elsewhere, the tools that have it work, and a model that calls them.

    Attributes:
        calls: the tools that the model asks for, answer by answer.
        poll: seconds between two looks that it asks for.
        timeout: seconds that the work may take.
        here: whether one process alone can find the work again.
        hangs: seconds that the tool that builds nothing takes.
        ahead: seconds by which the clock of the store was put forward while no process had it.
        begun: the keys of the calls that have handed work over.
        looks: the times of the looks, by the store's clock.
        results: the results, by handle; an error is raised.
        questions: what the next looks ask, each until it has its answer.
        answers: the answers to them.
        digests: seconds that it takes to have an answer.
        cancelled: the handles whose work was to end.
        present: whether the tools are there.
    """

    calls: list[list[str]] = attrs.field(factory=lambda: [["build"]])
    poll: float = 2.0
    timeout: float = 2 * DAY
    here: bool = False
    hangs: float = 0.0
    ahead: float = 0.0
    begun: list[str] = attrs.field(factory=list)
    looks: list[float] = attrs.field(factory=list)
    results: dict[str, str | Exception] = attrs.field(factory=dict)
    questions: list[dict[str, Any]] = attrs.field(factory=list)
    answers: list[bool] = attrs.field(factory=list)
    digests: float = 0.0
    cancelled: list[str] = attrs.field(factory=list)
    present: bool = True

    async def look(self, handle: Any, /) -> str | Unfinished:
        """Look once, or as long as a question is open."""
        self.looks.append(self.clock())
        await trio.lowlevel.checkpoint()
        put = asking.get()
        if self.questions and put is not None:
            decision = await put(self.questions[0])
            await trio.sleep(self.digests)
            self.questions.pop(0)
            self.answers.append(decision is not None and decision.allow)
        found = self.results.get(handle["id"], Unfinished(self.poll))
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self, handle: Any, /) -> None:
        """Note it."""
        self.cancelled.append(handle["id"])

    @property
    def tools(self) -> list[Tool]:
        """The tools."""

        @tool(description="Build.", category="mcp", timeout=self.timeout)
        async def build() -> Handed:
            await trio.lowlevel.checkpoint()
            self.begun.append(current_call().key)
            return Handed({"id": f"work-{len(self.begun)}"})

        @tool(description="Rest.", category="memory")
        async def rest() -> str:
            await trio.sleep(self.hangs)
            return "rested"

        @tool(description="Pay.")
        async def pay() -> str:
            await trio.sleep(self.hangs)
            return "paid"

        return [attrs.evolve(build, remote=self), rest, pay] if self.present else []

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Ask for the tools of the next step; then say "done"."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        prompt = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage))
        step = sum(isinstance(each, AssistantMessage) for each in messages[prompt:])
        if step == len(self.calls):
            return reply("done")
        return reply("", *(ToolUseBlock(f"call-{step}-{at}", each, {}) for at, each in enumerate(self.calls[step])))

    def open(self, store: Path | None, **options: Any) -> AbstractAsyncContextManager[Service]:
        """Open a runtime whose store has the virtual clock."""
        model = FunctionModel(self.answer)
        config = options.pop("config", Config(gates=Gates(callback="ask")))
        return open_runtime(model, store=store, tools=self.tools, config=config, clock=self.clock, **options)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()

    @property
    def pauses(self) -> list[float]:
        """The seconds between the looks."""
        return [after - before for before, after in zip(self.looks, self.looks[1:], strict=False)]


async def results(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each.content for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def waiting(service: Service, session_id: str) -> list[tuple[str, str]]:
    """Return the calls that the session's turn waits for, with the reasons."""
    turn = (await service.read(session_id)).state.turn
    return [] if turn is None or turn.state != "waiting" else [(each.call_id, each.reason) for each in turn.waiting_for]


async def left(service: Service, seconds: float = 1.0) -> str:
    """Begin a turn whose caller leaves after so many seconds; return the session."""
    session_id = await new_session(service)
    with trio.move_on_after(seconds):
        await service.start_turn(session_id, "go")
    return session_id


async def test_an_hour_of_looks(tmp_path: Path) -> None:
    """The pauses grow to half a minute, between the looks nothing of the turn is in memory, and nothing is news."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        assert await waiting(service, session_id) == [("call-0-0", "outside")]
        await trio.sleep(600)
        before, seqs, gone = (await service.read(session_id)).state, len(await replay(service, session_id)), 0
        for _ in range(40):
            await trio.sleep(77)
            assert await waiting(service, session_id) == [("call-0-0", "outside")]
            gone += actor_of(service, session_id) is None
        state = (await service.read(session_id)).state
        assert (state.updated_at, state.turn) == (before.updated_at, before.turn)
        assert len(await replay(service, session_id)) == seqs
        assert gone > 30
        yard.results["work-1"] = "built"
        assert (await service.wait_turn(session_id)).text == "done"
        assert await results(service, session_id) == ["built"]
        log = names(await replay(service, session_id))
        assert (log.count("tool_execution_started"), log.count("tool_execution_completed")) == (1, 1)
        assert "turn_resumed" not in log
    assert len(yard.begun) == 1
    assert min(yard.pauses) >= 2
    assert max(yard.pauses) < 33
    assert len(yard.looks) < 4000 / 30 + 40
    assert yard.cancelled == []


async def test_a_day_of_restarts(tmp_path: Path) -> None:
    """Each process looks a few times, and the last one has the result."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
    for _ in range(24):
        yard.ahead += 3500
        looks = len(yard.looks)
        async with yard.open(tmp_path) as service:
            await trio.sleep(65)
            assert 2 <= len(yard.looks) - looks <= 3
            assert await waiting(service, session_id) == [("call-0-0", "outside")]
    yard.results["work-1"] = "built"
    async with yard.open(tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "done"
        assert await results(service, session_id) == ["built"]
    assert len(yard.begun) == 1


@pytest.mark.parametrize("takes", [1.0, 5.0, 20.0, 45.0, 130.0, 1200.0])
async def test_a_result_is_found_soon(tmp_path: Path, takes: float) -> None:
    """Measured by the time that it took: its caller gets it at most a tenth later, or two seconds."""
    yard = Yard(poll=1.0)
    async with yard.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id, began = await new_session(service), trio.current_time()
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(takes)
        yard.results["work-1"] = "built"
        assert (await turn.value()).text == "done"
        assert trio.current_time() - began - takes < max(2.1, 0.1 * takes + 1.1)


@pytest.mark.parametrize("poll", [20.0, 600.0])
async def test_a_server_that_wants_few_looks_gets_few(tmp_path: Path, poll: float) -> None:
    """However young the work is, and whoever waits."""
    yard = Yard(poll=poll)
    async with yard.open(tmp_path) as service:
        session_id = await new_session(service)
        with trio.move_on_after(1300):
            await service.start_turn(session_id, "go")
    assert min(yard.pauses) >= poll
    assert len(yard.looks) >= 1300 / max(poll + 1, 31)


async def test_a_restart_between_two_looks(tmp_path: Path) -> None:
    """The next process looks when it is time, and no sooner; the tool is not called again."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(1000)
    for _ in range(3):
        yard.ahead += 8
        async with yard.open(tmp_path) as service:
            await trio.sleep(1)
            assert await waiting(service, session_id) == [("call-0-0", "outside")]
    async with yard.open(tmp_path) as service:
        yard.results["work-1"] = "built"
        assert (await service.wait_turn(session_id)).text == "done"
        assert "turn_resumed" not in names(await replay(service, session_id))
    assert min(yard.pauses[40:]) > 29
    assert len(yard.begun) == 1


async def test_a_process_that_was_away_looks_at_once(tmp_path: Path) -> None:
    """The time of the look has passed meanwhile."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(100)
    yard.ahead += 5000
    looks, yard.results["work-1"] = len(yard.looks), "built"
    async with yard.open(tmp_path) as service:
        await trio.sleep(2)
        assert await results(service, session_id) == ["built"]
    assert len(yard.looks) == looks + 1


async def test_two_processes(tmp_path: Path) -> None:
    """One of them has each look, whichever began the turn; the caller at the other one gets the answer."""
    yard = Yard()
    async with yard.open(tmp_path) as one, yard.open(tmp_path) as two, trio.open_nursery() as nursery:
        session_id = await left(one)
        await trio.sleep(500)
        assert max(yard.pauses) < 33
        assert min(yard.pauses) >= 2
        turn = ask(nursery, two.wait_turn, session_id)
        await trio.sleep(100)
        yard.results["work-1"] = "built"
        assert (await turn.value()).text == "done"
    assert len(yard.begun) == 1


async def test_work_that_one_process_can_find_stays_with_it(tmp_path: Path) -> None:
    """Its turn suspends, and its session stays in memory; another process gets it once this one is gone."""
    yard, other = Yard(here=True), Yard(results={"work-1": ToolError("no such work")})
    async with yard.open(tmp_path) as one, other.open(tmp_path) as two:
        session_id = await left(one)
        for _ in range(20):
            await trio.sleep(47)
            assert actor_of(one, session_id) is not None
        assert supervisor_of(one).scheduler.running == set()
        turn = await two.read(session_id)
        assert turn.state.turn is not None
        assert turn.state.turn.state == "waiting"
        assert other.looks == []
        yard.results["work-1"] = "built"
        await trio.sleep(40)
        assert await results(two, session_id) == ["built"]
    assert other.looks == []


@pytest.mark.parametrize("how", ["interrupt", "archive", "delete"])
@pytest.mark.parametrize("since", [1.0, 100.0])
@pytest.mark.parametrize("restarted", [False, True])
async def test_work_that_nobody_wants_ends(tmp_path: Path, how: str, since: float, *, restarted: bool) -> None:
    """While the turn lives, once it has suspended, and in another process."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service, 0.5 if restarted else since)
        if not restarted:
            await getattr(service, how)(session_id)
        else:
            await trio.sleep(since)
    if restarted:
        async with yard.open(tmp_path) as service:
            await getattr(service, how)(session_id)
    assert yard.cancelled == ["work-1"]
    looks = len(yard.looks)
    async with yard.open(tmp_path):
        await trio.sleep(100)
    assert len(yard.looks) == looks


@attrs.define
class Starting:
    """A pool of MCP servers that have tools once their first attempt to connect has ended.

    Attributes:
        offered: the tools.
        tried: set at the end of the attempt.
    """

    offered: Sequence[Tool]
    tried: trio.Event = attrs.field(factory=trio.Event)

    def tools(self, _owner: str | None, _taken: Collection[str]) -> Sequence[Tool]:
        """Return the present tools."""
        return self.offered if self.tried.is_set() else ()

    def untried(self, _owner: str | None) -> list[trio.Event]:
        """Return the event while the attempt goes on."""
        return [] if self.tried.is_set() else [self.tried]


@pytest.mark.parametrize("then", ["read", "archive", "delete"])
@pytest.mark.parametrize("woken", [True, False])
async def test_work_ends_whose_server_connects_after_the_turn_has_ended(
    tmp_path: Path, then: str, *, woken: bool
) -> None:
    """An interrupted turn that waits for the server ends at once, and its work once that is there, whatever follows."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        if woken:
            await trio.sleep(100)
    pool, yard.present, yard.ahead = Starting(yard.tools), False, 5000.0
    servers = RuntimeServers(cast("McpPool", pool), 1)
    async with yard.open(tmp_path, servers=servers) as service, trio.open_nursery() as nursery:
        await trio.sleep(1)
        assert supervisor_of(service).scheduler.running == {session_id}
        with trio.fail_after(1):
            await service.interrupt(session_id)
        following = ask(nursery, getattr(service, then), session_id)
        await trio.sleep(1)
        assert yard.cancelled == []
        pool.tried.set()
        await following.ended.wait()
        assert following.error is None
        await trio.sleep(1)
        assert yard.cancelled == ["work-1"]
    assert len(yard.looks) == len([at for at in yard.looks if at < 5000])


@pytest.mark.parametrize("waits", [True, False])
async def test_an_error_is_the_result(tmp_path: Path, *, waits: bool) -> None:
    """Of work that has failed, or that is not known any more."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service, 400 if waits else 0.5)
        if not waits:
            await trio.sleep(400)
        yard.results["work-1"] = ToolError("the server does not know the task")
        assert (await service.wait_turn(session_id)).text == "done"
        assert await results(service, session_id) == ["the server does not know the task"]
    assert yard.cancelled == []


@pytest.mark.parametrize("store", ["store", "memory"])
@pytest.mark.parametrize("limit", [3.0, 100.0, 1000.0])
async def test_the_time_is_over(tmp_path: Path, limit: float, store: str) -> None:
    """The work is looked at a last time, and then to end."""
    yard = Yard(timeout=limit)
    config = Config(limits=Limits(turn=Budget()))
    async with yard.open(tmp_path if store == "store" else None, config=config) as service:
        session_id, began = await new_session(service), trio.current_time()
        assert (await service.start_turn(session_id, "go")).text == "done"
        assert trio.current_time() - began == pytest.approx(limit, abs=2.1)
        assert await results(service, session_id) == [f"timed out after {limit:g} s"]
        log = names(await replay(service, session_id))
        assert log.count("tool_execution_timed_out") == 1
    assert yard.cancelled == ["work-1"]
    assert yard.looks[-1] >= yard.looks[0] + limit - 0.5


async def test_a_result_that_came_while_no_process_ran(tmp_path: Path) -> None:
    """It counts, though the time of the call was over before the next process could look."""
    yard = Yard(timeout=1000)
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(100)
    yard.ahead, yard.results["work-1"] = 5000, "built"
    async with yard.open(tmp_path) as service:
        await trio.sleep(2)
        assert await results(service, session_id) == ["built"]
    assert yard.cancelled == []


async def test_it_is_looked_at_while_another_call_runs(tmp_path: Path) -> None:
    """Its result is there when the other call ends; until then the turn does not suspend."""
    yard = Yard(calls=[["build", "rest"]], hangs=500)
    async with yard.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(400)
        assert len(yard.looks) > 30
        assert supervisor_of(service).scheduler.running == {session_id}
        yard.results["work-1"] = "built"
        await trio.sleep(95)
        looks = len(yard.looks)
        await turn.value()
        assert len(yard.looks) == looks
        assert await results(service, session_id) == ["built", "rested"]


async def test_the_turn_suspends_once_the_other_call_has_ended(tmp_path: Path) -> None:
    """At once, not with the next look, and the result of that call is kept."""
    yard = Yard(calls=[["build", "rest"]], hangs=500)
    async with yard.open(tmp_path) as service:
        session_id = await left(service, 490)
        await trio.sleep(11)
        assert supervisor_of(service).scheduler.running == set()
        await trio.sleep(1)
        assert actor_of(service, session_id) is None
        yard.results["work-1"] = "built"
        assert (await service.wait_turn(session_id)).text == "done"
        assert await results(service, session_id) == ["built", "rested"]


async def test_an_approval_beside_it(tmp_path: Path) -> None:
    """The decision wakes the turn, whose work is looked at no sooner for it, and goes on to be looked at."""
    yard = Yard(calls=[["build", "pay", "build"]], hangs=400, poll=20)
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(200)
        assert sorted(await waiting(service, session_id)) == [
            ("call-0-0", "outside"),
            ("call-0-1", "approval"),
            ("call-0-2", "outside"),
        ]
        await service.approve_tool(session_id, "call-0-1", "allow")
        looks = len(yard.looks)
        await trio.sleep(1)
        assert len(yard.looks) == looks
        await trio.sleep(300)
        assert len(yard.looks) >= looks + 18
        yard.results |= {"work-1": "built", "work-2": "built too"}
        assert (await service.wait_turn(session_id)).text == "done"
        assert sorted(await results(service, session_id)) == ["built", "built too", "paid"]


async def test_a_prompt_meanwhile(tmp_path: Path) -> None:
    """It hears what the turn waits for, whether the turn has suspended or waits for a look that is near."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        for _ in range(2):
            with pytest.raises(SessionBusyError, match=r"waits: build \(call-0-0\) for a result from outside"):
                await service.start_turn(session_id, "now")
            await trio.sleep(300)


async def test_a_store_that_refuses_ends_no_work(tmp_path: Path) -> None:
    """The turn cannot be stored as it suspends: it stays open, and goes on later."""
    yard, faults = Yard(poll=10), Faults(refuse_kinds=(Commit,))
    async with yard.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await left(service)
        turn = ask(nursery, service.wait_turn, session_id)
        faults.refuse = apsw.FullError("full")
        await turn.failure(StoreError)
        faults.refuse, yard.results["work-1"] = None, "built"
        await trio.sleep(200)
        assert await results(service, session_id) == ["built"]
    assert yard.cancelled == []
    assert len(yard.begun) == 1


async def test_a_tool_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """Its server is not connected as the next process takes the turn up: the work is looked at once it is."""
    yard = Yard()
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(100)
    yard.present, looks = False, len(yard.looks)
    async with yard.open(tmp_path) as service:
        await trio.sleep(200)
        assert await waiting(service, session_id) == [("call-0-0", "outside")]
        assert actor_of(service, session_id) is None
    assert len(yard.looks) == looks
    yard.present, yard.results["work-1"] = True, "built"
    async with yard.open(tmp_path) as service:
        await trio.sleep(40)
        assert await results(service, session_id) == ["built"]


async def test_a_tool_that_is_gone_has_no_result(tmp_path: Path) -> None:
    """Once the time of its call is over."""
    yard = Yard(timeout=1000)
    async with yard.open(tmp_path) as service:
        session_id = await left(service)
        await trio.sleep(100)
    yard.present = False
    async with yard.open(tmp_path) as service:
        await trio.sleep(1000)
        assert await results(service, session_id) == ["timed out after 1000 s"]


async def test_suspended_time_is_no_running_time(tmp_path: Path) -> None:
    """A budget of time counts the looks alone."""
    yard = Yard(poll=10)
    config = Config(limits=Limits(turn=Budget(max_seconds=60)))
    async with yard.open(tmp_path, config=config) as service:
        session_id = await left(service)
        await trio.sleep(400)
        yard.results["work-1"] = "built"
        assert (await service.wait_turn(session_id)).text == "done"


async def test_the_time_of_the_turn_ends_its_work(tmp_path: Path) -> None:
    """While it lives: nobody wants the result any more."""
    yard = Yard(poll=1)
    config = Config(limits=Limits(turn=Budget(max_seconds=20)))
    async with yard.open(tmp_path, config=config) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "go")
    assert yard.cancelled == ["work-1"]


@attrs.define
class Approver:
    """Decides on questions of a session.

    Attributes:
        service: the service.
        session_id: the session.
    """

    service: Service
    session_id: str

    async def pending(self) -> list[str]:
        """Return the ids of what waits for a decision."""
        return [each.call_id for each in (await self.service.read(self.session_id)).state.pending_approvals]

    async def decide(self, call_id: str, *, allow: bool = True) -> None:
        """Decide on one thing, which has to wait."""
        assert await self.pending() == [call_id]
        await self.service.approve_tool(self.session_id, call_id, "allow" if allow else "deny")


ASKS = Config(gates=Gates(mcp="ask"), limits=Limits(approval_timeout=DAY))
GO_ON = {"message": "Go on?"}


async def test_questions_of_different_looks_are_different_ones(tmp_path: Path) -> None:
    """Each is asked, also one with the same words as an earlier one, whose answer counts for that alone."""
    yard = Yard()
    async with yard.open(tmp_path, config=ASKS) as service:
        session_id = await left(service)
        approver = Approver(service, session_id)
        await approver.decide("call-0-0")
        await trio.sleep(300)
        for number, allow in ((1, True), (2, False), (3, True)):
            yard.questions.append(GO_ON)
            await trio.sleep(300)
            assert len(yard.answers) == number - 1
            await approver.decide(f"call-0-0.{number}", allow=allow)
            await trio.sleep(300)
            assert await approver.pending() == []
        assert yard.answers == [True, False, True]
        yard.results["work-1"] = "built"
        assert (await service.wait_turn(session_id)).text == "done"


async def test_an_answer_that_the_work_has_not_got_is_given_again(tmp_path: Path) -> None:
    """The process ends after the answer: the next one asks nobody again, and the question after it is a new one."""
    yard = Yard(questions=[GO_ON], digests=DAY)
    async with yard.open(tmp_path, config=ASKS) as service:
        session_id = await left(service)
        await Approver(service, session_id).decide("call-0-0")
        await trio.sleep(300)
        await Approver(service, session_id).decide("call-0-0.1")
        await trio.sleep(1)
    assert yard.answers == []
    yard.digests = 0.0
    async with yard.open(tmp_path, config=ASKS) as service:
        await trio.sleep(1)
        assert yard.answers == [True]
        yard.questions.append(GO_ON)
        await trio.sleep(100)
        await Approver(service, session_id).decide("call-0-0.2", allow=False)
        await trio.sleep(1)
        assert yard.answers == [True, False]


async def test_very_many_suspended_calls_are_looked_at_in_time(tmp_path: Path) -> None:
    """Each wake-up finds the others that follow: none waits for the next search of the whole store."""
    yard = Yard(poll=300)
    async with yard.open(tmp_path) as service, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(partial(left, service))
            await trio.sleep(3)
        yard.poll = 7.0
        looks, began = len(yard.looks), yard.looks[0]
        await trio.sleep(300 + 30)
        assert len(yard.looks) >= looks + 8
        late = [at - began - 300 - 3 * number for number, at in enumerate(yard.looks[looks : looks + 8])]
        assert max(late) < 2.5
