"""Results of tool calls that come from outside, under completion tokens: early, late, twice, and after restarts."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import apsw
import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names
from tests.support.completions import token_for
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply, says
from tests.support.runtime import new_session, open_runtime, replay, storage_of, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.actors.protocol import Wake
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    PermissionDeniedError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
)
from warren.base.principals import Principal
from warren.conversation.completion import CompletionToken
from warren.conversation.messages import AssistantMessage, ToolResult, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Restart, Tool, ToolError, ToolOutput, current_call, tool
from warren.settings.config import Config, StoreConfig
from warren.storage.maintenance.backup import back_up, restore
from warren.storage.operations import StoreAnswer

pytestmark = pytest.mark.virtual_time
DAY = 24 * 3600.0
IN_MEMORY = Config(durability="turn")


@attrs.define(eq=False)
class Post:
    """A model that has a build made, and a tool that hands out its token for that.

    Attributes:
        tokens: the tokens that the tool has handed out.
        expires: seconds for which they are good.
        more: seconds for which each is good in addition to the one before.
        takes: seconds that the tool takes after it has handed its token out.
        token: the token under which the tool says that its result comes later; None for its own.
        restart: what becomes of a call whose process ends while its tool runs.
        calls: the calls of the tool that the model makes at once.
        beside: whether it makes a call of another tool at once, which takes a minute.
        ahead: seconds by which the clock of the store was put forward while no process had it.
    """

    tokens: list[str] = attrs.field(factory=list)
    expires: float = DAY
    more: float = 0.0
    takes: float = 0.0
    token: str | None = None
    restart: Restart = "report"
    calls: int = 1
    beside: bool = False
    ahead: float = 0.0

    @property
    def build(self) -> Tool:
        """The tool."""

        @tool(description="Build.", restart=self.restart)
        async def build() -> ToolOutput:
            token = current_call().token(expires=self.expires + self.more * len(self.tokens))
            self.tokens.append(token)
            await trio.sleep(self.takes)
            return ToolOutput.later(self.token or token)

        return build

    @property
    def tools(self) -> list[Tool]:
        """The tool, and another one that takes a minute."""

        @tool(restart="replay")
        async def walk() -> str:
            """Walk."""
            await trio.sleep(60)
            return "walked"

        return [self.build, walk]

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Ask for a build, whose call has the same id in each turn; then say "done"."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        prompt = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage))
        if any(isinstance(each, AssistantMessage) for each in messages[prompt:]):
            return reply("done")
        walks = [ToolUseBlock("walk-1", "walk", {})] if self.beside else []
        builds = [ToolUseBlock(f"call-{number}", "build", {}) for number in range(1, self.calls + 1)]
        return reply("", *builds, *walks)

    def open(
        self, store: Path | None, config: Config | None = None, faults: Faults | None = None
    ) -> AbstractAsyncContextManager[Service]:
        """Open a runtime whose store has the virtual clock."""
        model = FunctionModel(self.answer)
        return open_runtime(model, store=store, tools=self.tools, config=config, clock=self.clock, faults=faults)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()


async def told(service: Service, session_id: str) -> list[ToolResult]:
    """Return all results that the model of a session was told."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


@asynccontextmanager
async def building(post: Post, store: Path | None, config: Config | None = None) -> AsyncIterator[tuple[Service, str]]:
    """Open a runtime for a body with a session whose turn has handed out a token."""
    async with post.open(store, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        begun = len(post.tokens)
        nursery.start_soon(_quietly, service, session_id)
        while len(post.tokens) == begun:  # noqa: ASYNC110 - what is looked at has no event
            await trio.sleep(0.01)
        yield service, session_id
        nursery.cancel_scope.cancel()


async def _quietly(service: Service, session_id: str) -> None:
    try:
        await service.start_turn(session_id, "go", mode="queue", idempotency_key="key")
    except SessionNotFoundError:
        pass
    except AgentError as exc:
        if exc.cause not in ("shutting_down", "cancelled"):
            raise


async def text_of(service: Service, session_id: str) -> str:
    """Return the answer of the turn of `building`, which may have ended."""
    return (await service.start_turn(session_id, "go", mode="queue", idempotency_key="key")).text


async def until_waiting(service: Service, session_id: str) -> None:
    """Return once the turn of a session waits for a result from outside."""
    while True:
        turn = (await service.read(session_id)).state.turn
        if turn is not None and turn.state == "waiting":
            assert [(each.call_id, each.reason) for each in turn.waiting_for] == [("call-1", "outside")]
            return
        await trio.sleep(0.01)


@pytest.mark.parametrize("kept", ["stored", "whole", "memory"])
@pytest.mark.parametrize("early", [True, False])
async def test_the_model_gets_the_result(tmp_path: Path, kept: str, *, early: bool) -> None:
    """Whether it comes before the tool has said that it will, or after, and whether the turn is stored or not."""
    post = Post(takes=5.0 if early else 0.0)
    config = IN_MEMORY if kept == "whole" else None
    async with building(post, None if kept == "memory" else tmp_path, config) as (service, session_id):
        if not early:
            await until_waiting(service, session_id)
            await trio.sleep(60)
        await service.complete_tool(post.tokens[0], {"state": "passed", "tests": 3})
        assert await text_of(service, session_id) == "done"
        assert await told(service, session_id) == [ToolResult("call-1", '{"state":"passed","tests":3}')]
        log = names(await replay(service, session_id))
        assert log.count("tool_execution_completed") == 1
        assert "turn_resumed" not in log
        with pytest.raises(InvalidParamsError if kept == "stored" else SessionNotRunningError):
            await service.complete_tool(post.tokens[0], "another")


@pytest.mark.parametrize("early", [True, False])
async def test_restarts_and_days(tmp_path: Path, *, early: bool) -> None:
    """The token is good in the next process, and its result is kept if that ends before the turn goes on."""
    post = Post(expires=10 * DAY, takes=5.0 if early else 0.0)
    async with building(post, tmp_path) as (service, session_id):
        if early:
            await service.complete_tool(post.tokens[0], "built", is_error=True)
        else:
            await until_waiting(service, session_id)
    for _ in range(3):
        post.ahead += 3 * DAY
        async with post.open(tmp_path) as service:
            await trio.sleep(60)
    async with post.open(tmp_path) as service:
        await service.complete_tool(post.tokens[0], "built", is_error=True)
        assert await text_of(service, session_id) == "done"
        assert await told(service, session_id) == [ToolResult("call-1", "built", is_error=True)]
    assert len(post.tokens) == 1


async def test_a_call_that_is_replayed_takes_the_token_of_its_first_run(tmp_path: Path) -> None:
    """Each process gives the call a token with its own expiry, and each of them is good; they give one result."""
    post = Post(takes=5.0, restart="replay")
    async with building(post, tmp_path) as (service, session_id):
        pass
    async with post.open(tmp_path) as service:
        await until_waiting(service, session_id)
        first, second = post.tokens
        assert first != second
        await service.complete_tool(first, "built")
        await service.complete_tool(second, "built")
        with pytest.raises(InvalidParamsError, match="has got another result"):
            await service.complete_tool(second, "failed")
        assert await text_of(service, session_id) == "done"
        assert await told(service, session_id) == [ToolResult("call-1", "built")]


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_result_ends_the_question_whether_its_call_runs_again(
    tmp_path: Path, decision: Literal["allow", "deny"], *, beside: bool
) -> None:
    """The call takes the result that has come, and neither runs again nor is refused, also while another one runs."""
    post = Post(takes=5.0, restart="ask", beside=beside)
    async with building(post, tmp_path) as (service, session_id):
        pass
    async with post.open(tmp_path) as service:
        await trio.sleep(1)
        (asked,) = (await service.approvals()).approvals
        assert asked.may_have_run
        await service.complete_tool(post.tokens[0], "built")
        with suppress(InvalidParamsError):  # nobody waits for it any more
            await service.approve_tool(session_id, "call-1", decision)
        assert await text_of(service, session_id) == "done"
        assert (await told(service, session_id))[0] == ToolResult("call-1", "built")
    assert len(post.tokens) == 1


@pytest.mark.parametrize("kept", [True, False])
async def test_a_result_twice(tmp_path: Path, *, kept: bool) -> None:
    """The same one gets the same answer, in this process and the next, even once the token has expired."""
    post = Post()
    async with building(post, tmp_path if kept else None) as (service, session_id):
        await until_waiting(service, session_id)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(service.complete_tool, post.tokens[0], ["built"])
        await text_of(service, session_id)
        if kept:
            await service.complete_tool(post.tokens[0], ["built"])
    if kept:
        post.ahead += 2 * DAY
        async with post.open(tmp_path) as service:
            await service.complete_tool(post.tokens[0], ["built"])
            with pytest.raises(InvalidParamsError, match="has expired"):
                await service.complete_tool(post.tokens[0], ["failed"])
            entries = [each for each in (await service.audit()).entries if each.action == "complete"]
            assert [(each.outcome, each.session_id, each.details) for each in entries] == [
                ("done", session_id, {"call": "call-1"})
            ]


@pytest.mark.parametrize(
    ("first", "again", "others"),
    [
        ({"b": [True], "a": {"y": "ü", "x": 1}}, {"a": {"x": 1, "y": "ü"}, "b": [True]}, [{"b": [1]}, {}, "b"]),
        ({"ok": True}, {"ok": True}, [{"ok": 1}, {"ok": "true"}, True]),
        ([1, 2], [1, 2], [[2, 1], [1.0, 2], "[1,2"]),
        ("[1", "[1", [[1], "[1 "]),
    ],
)
async def test_what_counts_as_the_same_result(
    tmp_path: Path, first: object, again: object, others: list[object]
) -> None:
    """An object with its members in another order is the same one, in any process; another value is another result."""
    post = Post()
    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
        await service.complete_tool(post.tokens[0], first)
        await service.complete_tool(post.tokens[0], again)
        for other in others:
            with pytest.raises(InvalidParamsError, match="has got another result"):
                await service.complete_tool(post.tokens[0], other)
        await text_of(service, session_id)
    post.ahead += 2 * DAY
    async with post.open(tmp_path) as service:
        await service.complete_tool(post.tokens[0], again)


async def test_two_results_at_once(tmp_path: Path) -> None:
    """The first one counts, and the sender of the other hears that it does not."""
    post, heard = Post(), list[str]()

    async def give(result: str) -> None:
        try:
            await service.complete_tool(post.tokens[0], result)
        except InvalidParamsError:
            heard.append(f"not {result}")
        else:
            heard.append(result)

    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
        async with trio.open_nursery() as nursery:
            for result in ("a", "b", "c"):
                nursery.start_soon(give, result)
        await text_of(service, session_id)
        (given,) = [each.content for each in await told(service, session_id)]
        assert sorted(heard) == sorted([given, *(f"not {each}" for each in {"a", "b", "c"} - {given})])


async def test_a_result_that_was_not_wanted_wakes_nobody(tmp_path: Path) -> None:
    """A tool may hand its token out and fail: then another call can wait for days beside a result that was given."""
    tokens = list[str]()

    @tool
    async def give_up() -> str:
        """Hand the token out, and fail."""
        tokens.append(current_call().token(expires=DAY))
        await trio.sleep(2)
        raise ToolError("no")

    @tool
    async def build() -> ToolOutput:
        """Wait for a result."""
        return ToolOutput.later(current_call().token(expires=7 * DAY))

    calls = (ToolUseBlock("c1", "give_up", {}), ToolUseBlock("c2", "build", {}))
    model, post = says(reply("", *calls), reply("done")), Post()
    async with open_runtime(model, store=tmp_path, tools=[give_up, build], clock=post.clock) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_quietly, service, session_id)
            await trio.sleep(1)
            await service.complete_tool(tokens[0], "too early")
            await trio.sleep(2)
            before = storage_of(service).writes.groups.sum
            await trio.sleep(60)
            assert storage_of(service).writes.groups.sum <= before + 2  # its session leaves memory
            nursery.cancel_scope.cancel()


async def test_a_result_as_the_tool_returns(tmp_path: Path) -> None:
    """It is on its way to the store when the call begins to wait: that does not put the call back to waiting."""
    post, faults = Post(takes=5.0), Faults()
    async with post.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(4)
        faults.gate = trio.Event()
        given = ask(nursery, service.complete_tool, post.tokens[0], "built")
        await trio.sleep(2)
        assert not given.ended.is_set()
        faults.gate.set()
        await given.ended.wait()
        assert given.error is None
        with trio.fail_after(5):
            assert (await turn.value()).text == "done"
        assert [each.content for each in await told(service, session_id)] == ["built"]


@pytest.mark.parametrize("moment", range(0, 60, 5))
async def test_a_result_while_another_process_takes_the_turn_up(tmp_path: Path, moment: int) -> None:
    """It is taken at every moment between the beginning of the process and that of the tool, which is replayed."""
    post = Post(takes=5.0, restart="replay")
    for later in range(5):
        store = tmp_path / str(later)
        async with building(post, store):
            pass
        async with post.open(store) as service:
            for _ in range(moment + later):
                await trio.lowlevel.checkpoint()
            await service.complete_tool(post.tokens[-1], "built")
            (session,) = (await service.list()).sessions
            assert await text_of(service, session.session_id) == "done"
            assert [each.content for each in await told(service, session.session_id)] == ["built"]


@pytest.mark.parametrize("moment", range(0, 60, 3))
async def test_a_result_as_its_time_ends(tmp_path: Path, moment: int) -> None:
    """Either it is refused, or it is the result of the call, also while the store is slow."""
    post, faults = Post(expires=10, takes=8.9, calls=3), Faults()
    async with post.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        while len(post.tokens) < post.calls:  # noqa: ASYNC110 - what is looked at has no event
            await trio.sleep(0.01)
        await trio.sleep(8.5)
        faults.delay = faults.delay_after = 0.1
        await trio.sleep(0.3 + moment * 0.02)
        given = [ask(nursery, service.complete_tool, token, "built") for token in post.tokens]
        for each in given:
            await each.ended.wait()
        assert (await turn.value()).text == "done"
        got = [each.content == "built" for each in await told(service, session_id)]
        assert sorted(got) == sorted(each.error is None for each in given)


async def test_a_result_for_a_call_that_gave_up_while_its_turn_waits_on(tmp_path: Path) -> None:
    """It is refused, though the wait of the call ends with the step: its turn is stored, and waits for another call."""
    post = Post(expires=10, more=20, calls=2)
    async with post.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        while len(post.tokens) < post.calls:  # noqa: ASYNC110 - what is looked at has no event
            await trio.sleep(0.01)
        short, long = sorted(post.tokens, key=lambda token: CompletionToken.read(token).until)
        await trio.sleep(9.3)
        await service.inject_context(session_id, "look again")  # the time of the call ends early, and not on its own
        await trio.sleep(0.2)
        with pytest.raises(InvalidParamsError):
            await service.complete_tool(short, "built")
        await service.complete_tool(long, "built too")
        assert (await turn.value()).text == "done"
        first, second = await told(service, session_id)
        assert sorted([first.is_error, second.is_error]) == [False, True]


@pytest.mark.parametrize("kept", ["stored", "memory"])
async def test_nobody_gives_a_result_in_time(tmp_path: Path, kept: str) -> None:
    """The call fails when its token expires, and the token is refused from then on."""
    post = Post(expires=60)
    async with building(post, tmp_path if kept == "stored" else None) as (service, session_id):
        assert await text_of(service, session_id) == "done"
        (result,) = await told(service, session_id)
        assert result.is_error
        with pytest.raises((InvalidParamsError, SessionNotRunningError), match=r"has expired, at 1970|runs no turn"):
            await service.complete_tool(post.tokens[0], "built")


async def test_the_token_of_an_earlier_call_with_the_same_id_is_refused(tmp_path: Path) -> None:
    """While the later call runs, and while it waits: the model of the one gets no result of the other."""
    post = Post()
    async with post.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await until_waiting(service, session_id)
        await service.complete_tool(post.tokens[0], "first")
        await turn.value()
        post.takes = 5.0
        turn = ask(nursery, service.start_turn, session_id, "again")
        await trio.sleep(1)
        old, new = post.tokens
        with pytest.raises(InvalidParamsError, match="has got another result"):
            await service.complete_tool(old, "second")
        await until_waiting(service, session_id)
        with pytest.raises(InvalidParamsError, match="waits for a result"):
            await service.complete_tool(old, "second")
        await service.complete_tool(new, "second")
        await turn.value()
        assert [each.content for each in await told(service, session_id)] == ["first", "second"]


async def test_an_unused_token_of_an_earlier_call_gives_no_result(tmp_path: Path) -> None:
    """Nor if the process ends in between, and it is not known at once which call of the id has begun."""
    post = Post(expires=30 * DAY, restart="replay")
    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
        await service.interrupt(session_id)
        post.takes = 5.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_quietly_again, service, session_id)
            await trio.sleep(1)
            with pytest.raises(InvalidParamsError):
                await service.complete_tool(post.tokens[0], "old")
            nursery.cancel_scope.cancel()
    post.takes = 0.0
    async with post.open(tmp_path) as service:
        await until_waiting(service, session_id)
        with pytest.raises(InvalidParamsError):
            await service.complete_tool(post.tokens[0], "old")
        await service.complete_tool(post.tokens[-1], "new")
        await trio.sleep(1)
        assert (await told(service, session_id))[-1].content == "new"


async def _quietly_again(service: Service, session_id: str) -> None:
    try:
        await service.start_turn(session_id, "again")
    except SessionNotFoundError:
        pass
    except AgentError as exc:
        if exc.cause not in ("shutting_down", "cancelled"):
            raise


async def test_a_tool_waits_under_no_token_but_its_own(tmp_path: Path) -> None:
    """A bad one, and one of another call, are errors of the tool."""
    for token, problem in (("x", "is no completion token"), (token_for("s1", "call-1"), "is one of another call")):
        post = Post(token=token)
        async with post.open(tmp_path / problem) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, "go")
            (result,) = await told(service, session_id)
            assert result.is_error
            assert problem in result.content


@pytest.mark.parametrize("how", ["interrupt", "archive", "delete"])
async def test_a_turn_that_has_ended_takes_no_result(tmp_path: Path, how: str) -> None:
    """The error says so; a result that was never given is not taken for one."""
    post = Post()
    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
        await getattr(service, how)(session_id)
        with pytest.raises((InvalidParamsError, SessionNotRunningError, SessionNotFoundError)):
            await service.complete_tool(post.tokens[0], "built")
        if how == "interrupt":
            (result,) = await told(service, session_id)
            assert result.is_error


async def test_who_may_give_a_result(tmp_path: Path) -> None:
    """A caller of the tenant with the scope; tokens of another store and tenant look the same, and tell nothing."""
    post = Post()
    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
        token = post.tokens[0]
        with pytest.raises(PermissionDeniedError):
            await service.as_(Principal(scopes=frozenset({"session:read"}))).complete_tool(token, "x")
        problems = set[str]()
        for caller, shown in ((service.as_(Principal("acme")), token), (service, token_for(session_id, "call-1"))):
            with pytest.raises(InvalidParamsError) as caught:
                await caller.complete_tool(shown, "x")
            assert caught.value.path == "$.token"
            problems.add(caught.value.message)
        assert len(problems) == 1
        bearer = await service.bearer(token)
        assert (bearer.tenant, bearer.scopes) == ("default", frozenset({"session:write"}))
        await service.as_(bearer).complete_tool(token, "built")
        await trio.sleep(1)
        entries = [each for each in (await service.audit()).entries if each.action == "complete"]
        assert [(each.outcome, each.who) for each in entries] == [("refused", "local"), ("done", "completion token")]


async def test_a_result_that_the_store_refuses_was_not_taken(tmp_path: Path) -> None:
    """Its sender hears of it, and gives it again."""
    post, faults = Post(), Faults()
    async with post.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await until_waiting(service, session_id)
        faults.refuse, faults.refuse_kinds = apsw.FullError("full"), (StoreAnswer,)
        with pytest.raises(StoreError):
            await service.complete_tool(post.tokens[0], "built")
        faults.refuse = None
        await service.complete_tool(post.tokens[0], "built")
        assert (await turn.value()).text == "done"
        assert [each.content for each in await told(service, session_id)] == ["built"]


async def test_a_call_waits_on_while_the_secret_cannot_be_read(tmp_path: Path) -> None:
    """The process that goes on with its turn does not call the tool again, and takes a result once it can."""
    post = Post(restart="replay")
    async with building(post, tmp_path) as (service, session_id):
        await until_waiting(service, session_id)
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with post.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        ended = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="key")
        actor = supervisor_of(service).revive(session_id)
        actor.conversation.called = True  # it looks at its calls, as when a client comes back
        await actor.mailbox.ask(Wake())
        await trio.sleep(60)
        faults.no_secret = None
        await service.complete_tool(post.tokens[0], "green")
        assert (await ended.value()).text == "done"
        assert [each.content for each in await told(service, session_id)] == ["green"]
    assert len(post.tokens) == 1


@pytest.mark.parametrize("config", [None, IN_MEMORY], ids=["stored", "in memory"])
async def test_a_token_may_expire_while_its_tool_runs(tmp_path: Path, config: Config | None) -> None:
    """The call has no result then, and the turn goes on."""
    post = Post(expires=2.0, takes=60.0)
    async with building(post, tmp_path, config) as (service, session_id):
        await trio.sleep(120)
        (result,) = await told(service, session_id)
    assert result.content.startswith("not known: the call has begun, and its result did not come in time")


async def test_a_restored_store_takes_the_tokens_of_before(tmp_path: Path) -> None:
    """The call that waits in the backup gets its result under the token that is out there; a forged one is refused."""
    post, restored = Post(), tmp_path / "restored"
    async with building(post, tmp_path / "store") as (_, session_id):
        pass
    back_up(StoreConfig(tmp_path / "store"), tmp_path / "backup.sqlite3")
    restore(tmp_path / "backup.sqlite3", StoreConfig(restored))
    async with post.open(restored) as service:
        with pytest.raises(InvalidParamsError):
            await service.complete_tool(post.tokens[0][:-3] + "AAA", "forged")
        await service.complete_tool(post.tokens[0], "built")
        assert (await service.wait_turn(session_id)).text == "done"
        assert await told(service, session_id) == [ToolResult("call-1", "built")]
