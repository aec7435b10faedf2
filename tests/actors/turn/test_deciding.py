"""Decisions about calls that wait: all of them in one list, for a session, twice, and while somebody prompts."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from operator import itemgetter
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.hanging import expire_leases, store_of
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import open_runtime
from warren.actors.calls.service import Service
from warren.base.errors import InvalidParamsError, SessionBusyError, SessionNotRunningError, StoreError
from warren.base.principals import Principal
from warren.conversation.categories import Gates, Switches
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import asking, tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
ASK = Config(gates=Gates(shell="ask", mcp="ask"), switches=Switches(shell="enable"))
RUN: list[str] = []
Open = Callable[[], AbstractAsyncContextManager[Service]]


@tool(category="shell")
async def dig(where: str) -> str:
    """Dig a hole."""
    RUN.append(where)
    return f"a hole {where}"


@tool(category="mcp")
async def survey(where: str) -> str:
    """Ask a question of whoever approves the calls."""
    ask = asking.get()
    assert ask is not None
    decision = await ask({"message": f"{where}?"})
    return "nobody answered" if decision is None else decision.answer


async def digs(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Call the tool for each place that the user names, or `survey` for one with a question mark; then be done."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    if isinstance(last, ToolResultsMessage):
        return reply("done")
    places = str(getattr(last, "content", "")).split()
    names = ("survey" if each.endswith("?") else "dig" for each in places)
    calls = zip(names, places, strict=True)
    return reply(
        "", *(ToolUseBlock(f"{place}-{len(request.messages)}", name, {"where": place}) for name, place in calls)
    )


@pytest.fixture(autouse=True)
def _nothing_run() -> None:
    RUN.clear()


@pytest.fixture(params=["in memory", "stored"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens a runtime: without a store, or each time on the same one."""
    store = tmp_path if request.param == "stored" else None
    return lambda: open_runtime(FunctionModel(digs), store=store, tools=[dig, survey], config=ASK)


@pytest.fixture
def stored(tmp_path: Path) -> Open:
    """Return a function that opens a runtime on a store."""
    return lambda: open_runtime(FunctionModel(digs), store=tmp_path, tools=[dig, survey], config=ASK)


async def begin(nursery: trio.Nursery, service: Service, prompt: str, session_id: str | None = None) -> str:
    """Begin a turn, and return its session once all that it can do without a decision is done."""
    if session_id is None:
        session_id = (await service.create_session(None, title=f"About {prompt}")).session_id
    nursery.start_soon(lambda: service.start_turn(session_id, prompt))
    await wait_all_tasks_blocked()
    return session_id


async def waiting(service: Service) -> list[str]:
    """Return the ids of all calls that wait for approval."""
    return [each.call_id for each in (await service.approvals()).approvals]


async def test_the_list_has_the_calls_of_all_sessions(opened: Open) -> None:
    """The oldest first, with all that a decision needs, page by page; those of another tenant are not in it."""
    async with opened() as service, trio.open_nursery() as nursery:
        one = await begin(nursery, service, "here there")
        two = await begin(nursery, service, "lawn")
        await begin(nursery, service.as_(Principal("acme", "ann")), "elsewhere")
        page = await service.approvals()
        assert [(each.session_id, each.call_id) for each in page.approvals] == [
            (one, "here-1"), (one, "there-1"), (two, "lawn-1"),
        ]  # fmt: skip
        first, last = page.approvals[0], page.approvals[-1]
        assert (first.title, first.name, first.args, first.category) == (
            "About here there",
            "dig",
            {"where": "here"},
            "shell",
        )
        assert last.since > first.since
        assert (first.until - first.since).total_seconds() == 300
        assert (first.question_of, first.may_have_run, page.damaged) == (None, False, ())
        for offset in range(4):
            part = await service.approvals(offset=offset, limit=1)
            assert part.approvals == page.approvals[offset : offset + 1]
        for session_id, call_id in ((one, "here-1"), (one, "there-1"), (two, "lawn-1")):
            await service.approve_tool(session_id, call_id, "deny")
        assert await waiting(service) == []
        await service.as_(Principal("acme", "ann")).approve_tool(
            (await service.as_(Principal("acme", "ann")).approvals()).approvals[0].session_id, "elsewhere-1", "deny"
        )


async def test_the_list_has_calls_of_turns_that_are_stored_at_their_end(stored: Open) -> None:
    """They are in memory alone, and come before those of the store."""
    async with stored() as service, trio.open_nursery() as nursery:
        kept = await begin(nursery, service, "kept")
        alone = (await service.create_session(None, durability="turn")).session_id
        await begin(nursery, service, "alone", alone)
        assert await waiting(service) == ["alone-1", "kept-1"]
        assert [each.call_id for each in (await service.approvals(offset=1, limit=1)).approvals] == ["kept-1"]
        for session_id, call_id in ((alone, "alone-1"), (kept, "kept-1")):
            await service.approve_tool(session_id, call_id, "allow")


async def test_a_question_is_in_the_list(opened: Open) -> None:
    """It names the running call that asks it."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "pond?")
        await service.approve_tool(session_id, "pond?-1", "allow")
        await wait_all_tasks_blocked()
        (question,) = (await service.approvals()).approvals
        assert (question.question_of, question.args) == ("pond?-1", {"message": "pond??"})
        await service.approve_tool(session_id, question.call_id, "deny")


async def test_what_waits_is_listed_after_a_restart(stored: Open) -> None:
    """Nobody has the session in memory then; the decision lets the call run."""
    async with stored() as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(lambda: _given_up(service.start_turn(session_id, "here")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with stored() as service:
        await wait_all_tasks_blocked()
        assert await waiting(service) == ["here-1"]
        assert RUN == []
        await service.approve_tool(session_id, "here-1", "allow")
        await service.wait_turn(session_id)
        assert (RUN, await waiting(service)) == (["here"], [])


async def _given_up(turn: Awaitable[object]) -> None:
    await turn


async def test_a_tool_is_allowed_for_a_session(opened: Open) -> None:
    """Its calls that wait run, later ones do not wait, and those of other tools and sessions do."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here there pond?")
        await service.approve_tool(session_id, "here-1", "allow", remember=True)
        await wait_all_tasks_blocked()
        assert (sorted(RUN), await waiting(service)) == (["here", "there"], ["pond?-1"])
        assert (await service.read(session_id)).state.allowed_tools == ("dig",)
        await service.approve_tool(session_id, "pond?-1", "deny")
        await wait_all_tasks_blocked()
        await service.start_turn(session_id, "lawn")
        assert sorted(RUN) == ["here", "lawn", "there"]
        other = await begin(nursery, service, "elsewhere")
        assert await waiting(service) == ["elsewhere-1"]
        await service.approve_tool(other, "elsewhere-1", "deny")


async def test_a_question_is_never_allowed_for_a_session(opened: Open) -> None:
    """Neither by a decision about another one, nor by one about its tool."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "pond?")
        await service.approve_tool(session_id, "pond?-1", "allow", remember=True)
        await wait_all_tasks_blocked()
        (question,) = await waiting(service)
        await service.approve_tool(session_id, question, "allow", remember=True)
        await wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.allowed_tools == ("survey",)
        await begin(nursery, service, "lake?", session_id)
        (question,) = await waiting(service)  # of a call that has not waited
        assert question != "lake?-5"
        await service.approve_tool(session_id, question, "deny")


async def test_an_allowed_tool_is_taken_back(opened: Open) -> None:
    """Also while a turn runs; whatever is not allowed, or not named, stays as it is."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here pond?")
        await service.approve_tool(session_id, "here-1", "allow", remember=True)
        await service.label(session_id, ask_again=("survey",))
        assert (await service.read(session_id)).state.allowed_tools == ("dig",)
        await service.label(session_id, ask_again=("dig", "fill"))
        assert (await service.read(session_id)).state.allowed_tools == ()
        await service.approve_tool(session_id, "pond?-1", "deny")
        await wait_all_tasks_blocked()
        await begin(nursery, service, "lawn", session_id)
        (call,) = await waiting(service)
        await service.approve_tool(session_id, call, "deny")
        await wait_all_tasks_blocked()
    assert RUN == ["here"]


@pytest.mark.parametrize("moment", range(0, 20, 4))
async def test_an_allowed_tool_is_taken_back_while_its_session_changes_hands(tmp_path: Path, moment: int) -> None:
    """The process may load the session, with the tool allowed, just before the store has the change."""
    opened = partial(open_runtime, FunctionModel(digs), store=tmp_path, tools=[dig, survey], config=ASK)
    async with opened() as first, opened() as second, trio.open_nursery() as nursery:
        session_id = await begin(nursery, first, "here")
        await first.approve_tool(session_id, "here-1", "allow", remember=True)
        await wait_all_tasks_blocked()
        change = ask(nursery, partial(second.label, ask_again=("dig",)), session_id)
        await trio.sleep(moment / 1000)
        with pytest.raises(SessionNotRunningError):
            await second.wait_turn(session_id)
        assert (await change.value()).state.allowed_tools == ()
        assert (await second.read(session_id)).state.allowed_tools == ()


async def test_an_allowed_tool_is_taken_back_from_a_process_that_was_taken_for_dead(tmp_path: Path) -> None:
    """The other process does not take the session: the first one goes on with it, and asks about the tool again."""
    opened = partial(open_runtime, FunctionModel(digs), store=tmp_path, tools=[dig, survey], config=ASK)
    async with opened() as first, opened() as second, trio.open_nursery() as nursery:
        session_id = await begin(nursery, first, "here")
        await first.approve_tool(session_id, "here-1", "allow", remember=True)
        await wait_all_tasks_blocked()
        await expire_leases(first)
        assert (await second.label(session_id, ask_again=("dig",))).state.allowed_tools == ()
        (await store_of(first)).me.clock = time.time  # as a clock that was put back: it counts on its leases
        turn = ask(nursery, partial(first.start_turn, mode="queue", idempotency_key="k"), session_id, "lawn")
        assert (await turn.failure(StoreError)).cause == "lease_lost"
        nursery.start_soon(partial(first.start_turn, session_id, "lawn", mode="queue", idempotency_key="k"))
        await wait_all_tasks_blocked()
        (call,) = await waiting(first)
        assert RUN == ["here"]
        await first.approve_tool(session_id, call, "deny")


async def test_what_is_allowed_survives_a_restart(stored: Open) -> None:
    """So does what is taken back; a fork has to ask anew."""
    async with stored() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here")
        await service.approve_tool(session_id, "here-1", "allow", remember=True)
        await wait_all_tasks_blocked()
    async with stored() as service:
        await service.start_turn(session_id, "there")
        assert (await service.read(session_id)).state.allowed_tools == ("dig",)
        fork = await service.fork(session_id)
        assert fork.state.allowed_tools == ()
    async with stored() as service:
        view = await service.label(session_id, ask_again=("dig",))
        assert view.state.allowed_tools == ()
    async with stored() as service, trio.open_nursery() as nursery:
        await begin(nursery, service, "lawn", session_id)
        (call,) = await waiting(service)
        await service.approve_tool(session_id, call, "deny")
    assert RUN == ["here", "there"]


async def test_what_is_allowed_is_decided_at_once(tmp_path: Path) -> None:
    """No call of the tool waits on if the process ends as soon as the decision is stored."""
    faults = Faults()
    opened = partial(open_runtime, FunctionModel(digs), store=tmp_path, tools=[dig, survey], config=ASK)
    async with opened(faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here there lawn")
        await service.approve_tool(session_id, "lawn-1", "deny")
        await service.approve_tool(session_id, "here-1", "allow", remember=True)
        faults.refuse = apsw.FullError("the disk is full")
        nursery.cancel_scope.cancel()
    async with opened() as service:
        await trio.sleep(60)
        assert await waiting(service) == []
        assert (await service.read(session_id)).state.allowed_tools == ("dig",)
        audited = [each.details for each in (await service.audit()).entries if each.action == "approve"]
        assert [each["call"] for each in audited if each] == ["here-1", "there-1"]
    assert sorted(RUN) == ["here", "there"]


async def test_a_denied_kind_stays_denied(opened: Open) -> None:
    """What is allowed for a session is no more than not to be asked."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here")
        await service.approve_tool(session_id, "here-1", "allow", remember=True)
        await wait_all_tasks_blocked()
        await service.start_turn(session_id, "there", approvals=Gates(shell="deny"))
    assert RUN == ["here"]


async def test_a_decision_is_repeated(opened: Open) -> None:
    """The same one has the same answer, another one is refused with how the call was decided, and when."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here there lawn")
        for call_id, decision, other in (("here-1", "allow", "deny"), ("there-1", "deny", "allow")):
            await service.approve_tool(session_id, call_id, decision)  # type: ignore[arg-type]
            await service.approve_tool(session_id, call_id, decision, reason="again")  # type: ignore[arg-type]
            with pytest.raises(InvalidParamsError) as caught:
                await service.approve_tool(session_id, call_id, other)  # type: ignore[arg-type]
            assert caught.value.path == "$.call_id"
            how = "allowed" if decision == "allow" else "denied"
            assert f"was {how} at 20" in caught.value.message
        await service.approve_tool(session_id, "lawn-1", "deny")
    assert RUN == ["here"]


async def test_a_decision_is_repeated_after_the_turn_and_a_restart(stored: Open) -> None:
    """The store knows how a call was decided as long as it has the session."""
    async with stored() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here")
        await service.approve_tool(session_id, "here-1", "allow")
        await wait_all_tasks_blocked()
        await service.approve_tool(session_id, "here-1", "allow")
    async with stored() as service:
        await service.approve_tool(session_id, "here-1", "allow")
        with pytest.raises(InvalidParamsError, match="was allowed at 20"):
            await service.approve_tool(session_id, "here-1", "deny")
    assert RUN == ["here"]


async def test_a_busy_session_says_what_it_waits_for(opened: Open) -> None:
    """With the calls that are held up; one of whose calls another runs is just busy."""
    async with opened() as service, trio.open_nursery() as nursery:
        session_id = await begin(nursery, service, "here there")
        with pytest.raises(SessionBusyError) as caught:
            await service.start_turn(session_id, "hello?")
        told = sorted(caught.value.details["waiting_for"], key=itemgetter("call_id"))
        assert [(each["call_id"], each["name"], each["reason"]) for each in told] == [
            ("here-1", "dig", "approval"),
            ("there-1", "dig", "approval"),
        ]
        since = [each.since.isoformat() for each in (await service.approvals()).approvals]
        assert [each["since"] for each in told] == since
        assert "here-1" in caught.value.message
        for call_id in ("here-1", "there-1"):
            await service.approve_tool(session_id, call_id, "deny")


async def test_a_session_that_nobody_has_says_what_it_waits_for(stored: Open) -> None:
    """The next process tells the same, before it has taken the turn up."""
    async with stored() as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(lambda: _given_up(service.start_turn(session_id, "here")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with stored() as service:
        with pytest.raises(SessionBusyError) as caught:
            await service.start_turn(session_id, "hello?")
        assert [each["call_id"] for each in caught.value.details["waiting_for"]] == ["here-1"]
        await service.approve_tool(session_id, "here-1", "deny")
        await service.wait_turn(session_id)
