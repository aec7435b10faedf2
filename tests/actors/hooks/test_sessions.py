"""Hooks of settings in sessions: each event with a script and a settings.json, as they are in a project."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.hooks.scripts import script
from tests.support.receiver import Posted, receiving
from warren import (
    Budget,
    CompactionConfig,
    Config,
    Gates,
    Limits,
    RuntimeService,
    SessionService,
    StoreConfig,
    Switches,
    ToolsConfig,
    open_supervisor,
    tool,
)
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.principals import Principal
from warren.conversation.events import ToolApprovalRequested
from warren.conversation.messages import ContextMessage, ToolResultsMessage, UserMessage
from warren.settings.hook_config import HookEntry
from warren.testing import ScriptedModel, call, say


@attrs.define
class Project:
    """A project with hooks, and what they were told."""

    folder: Path
    hooks: dict[str, list[Any]] = attrs.field(factory=dict)

    @property
    def file(self) -> Path:
        """The settings."""
        return self.folder / ".claude" / "settings.json"

    @property
    def told(self) -> list[dict[str, Any]]:
        """What hooks were told, in order."""
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(
        self, event: str, answer: str = "exit 0", *, matcher: str = "*", background: bool = False, **fields: Any
    ) -> None:
        """Add a hook: a script that notes what it is told, and answers."""
        name = f"{event}{sum(map(len, self.hooks.values()))}.sh"
        note = 'body=$(cat); printf "%s\\n" "$body" >> "$CLAUDE_PROJECT_DIR/told"'
        script(self.file.parent, f"{note}\n{answer}", name)
        handler = {"type": "command", "command": f'"$CLAUDE_PROJECT_DIR"/.claude/{name}', "async": background, **fields}
        self.hooks.setdefault(event, []).append({"matcher": matcher, "hooks": [handler]})
        self.file.write_text(json.dumps({"hooks": self.hooks}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project without hooks."""
    return Project(tmp_path / "project")


@tool
async def pay(order: str) -> str:
    """Pay money back for an order."""
    await trio.lowlevel.checkpoint()
    return f"paid {order}"


@tool
async def break_it() -> str:
    """Break."""
    raise ValueError("broken")


def says(data: Any) -> str:
    """Return the lines of a script that answer with JSON."""
    return f"cat <<'END'\n{json.dumps(data)}\nEND"


def decides(event: str, **fields: Any) -> str:
    """Return the lines of a script that decide about an event."""
    return says({"hookSpecificOutput": {"hookEventName": event, **fields}})


PAYS = [call("pay", order="17"), say("done")]


@asynccontextmanager
async def opened(
    project: Project, steps: Sequence[Any] = PAYS, *, root: Path | None = None, **config: Any
) -> AsyncIterator[tuple[RuntimeService, ScriptedModel]]:
    """Open a runtime with the hooks of a project."""
    model = ScriptedModel(steps)
    if root is not None:
        config |= {"tools": ToolsConfig(root=root), "switches": Switches(builtins="enable")}
    settings = Config(model="mine", **{"hooks_files": (project.file,), **config})
    async with open_supervisor(settings, tools=[pay, break_it], providers={"mine": model}) as service:
        yield service, model


async def results(service: SessionService, session_id: str) -> list[str]:
    """Return the results of the tool calls of a session."""
    messages = (await service.history(session_id)).messages
    found = [each.message for each in messages]
    return [
        result.content for message in found if isinstance(message, ToolResultsMessage) for result in message.results
    ]


async def context(service: SessionService, session_id: str) -> list[str]:
    """Return the texts for the model that are no prompts."""
    messages = [each.message for each in (await service.history(session_id)).messages]
    return [message.content for message in messages if isinstance(message, ContextMessage)]


async def test_a_call_is_denied_by_its_exit_code(project: Project) -> None:
    """The model gets the text on stderr, and the tool has not run; what the hook was told is the dialect's."""
    project.add("PreToolUse", "echo 'not on a Friday' >&2; exit 2", matcher="pay")
    async with opened(project) as (service, _):
        session_id = (await service.create_session("pay")).session_id
        (result,) = await results(service, session_id)
    assert result == "not run: not on a Friday"
    (told,) = project.told
    assert told.pop("tool_use_id")
    assert told == {
        "session_id": session_id,
        "transcript_path": "",
        "cwd": "",
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tenant": "default",
        "tool_name": "pay",
        "tool_input": {"order": "17"},
    }


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (decides("PreToolUse", permissionDecision="deny", permissionDecisionReason="no"), "not run: no"),
        (says({"decision": "block", "reason": "no"}), "not run: no"),
        (decides("PreToolUse", permissionDecision="allow", updatedInput={"order": "18"}), "paid 18"),
        (decides("PreToolUse", additionalContext="on staging"), "paid 17\n\non staging"),
        ("echo '{\"bad'", "paid 17"),
        ("echo oops >&2; exit 1", "paid 17"),
        ("exit 0", "paid 17"),
    ],
)
async def test_answers_about_calls(project: Project, answer: str, result: str) -> None:
    """Deny, change, add; a failure and bad JSON leave the call as it is, as in Claude Code."""
    project.add("PreToolUse", answer)
    async with opened(project) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == [result]


async def test_a_hook_that_hangs(project: Project) -> None:
    """Is ended after its time; the call goes on, or is refused if the settings say so."""
    project.add("PreToolUse", "sleep 1000", timeout=0.3)
    async with opened(project) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == ["paid 17"]
    closed = HookEntry(event="PreToolUse", command="sleep 1000", timeout=0.3, on_failure="deny")
    async with opened(project, hooks_files=(), hook_commands=(closed,)) as (service, _):
        (result,) = await results(service, (await service.create_session("pay")).session_id)
    assert result == "not run: PreToolUse hook sleep 1000 failed: it took longer than 0.3 s"


async def test_a_call_waits_for_a_person(project: Project, tmp_path: Path) -> None:
    """With the hook's question, over a restart; once there is a decision, the hook's arguments are used."""
    asks = decides(
        "PreToolUse", permissionDecision="ask", permissionDecisionReason="sure?", updatedInput={"order": "18"}
    )
    project.add("PreToolUse", asks)
    store = StoreConfig(tmp_path / "store")
    async with opened(project, store=store, limits=Limits(drain=0.1)) as (service, _):
        async with service.stream_session("pay") as events:
            async for envelope in events:
                if isinstance(envelope.event, ToolApprovalRequested):
                    assert envelope.event.question == "sure?"
                    break
        session_id = events.session_id
    async with opened(project, store=store) as (service, _):
        (waiting,) = (await service.approvals()).approvals
        await service.approve_tool(session_id, waiting.call_id, "allow")
        assert (await service.wait_turn(session_id)).text == "done"
        assert await results(service, session_id) == ["paid 18"]


async def test_a_gate_is_passed(project: Project) -> None:
    """By a hook that allows the call, without a person."""
    project.add("PreToolUse", decides("PreToolUse", permissionDecision="allow"))
    async with opened(project, gates=Gates(callback="ask")) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == ["paid 17"]


async def test_our_tools_have_claudes_names(project: Project, tmp_path: Path) -> None:
    """A guard that was written for Write sees ours; it changes the arguments by its names."""
    root = tmp_path / "root"
    root.mkdir()
    changed = {"file_path": str(root / "b.txt"), "content": "changed"}
    project.add("PreToolUse", decides("PreToolUse", updatedInput=changed), matcher="Write|Edit")
    project.add("PostToolUse", matcher="^Write$")
    steps = [call("write_file", path="a.txt", content="x"), say("done")]
    async with opened(project, steps, root=root) as (service, _):
        await service.create_session("write")
    before, after = project.told
    assert (before["tool_name"], before["cwd"]) == ("Write", str(root))
    assert before["tool_input"] == {"file_path": str(root / "a.txt"), "content": "x"}
    assert after["tool_input"] == changed
    assert (root / "b.txt").read_text() == "changed"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("echo 'run the linter' >&2; exit 2", "paid 17\n\nrun the linter"),
        (says({"decision": "block", "reason": "look again"}), "paid 17\n\nlook again"),
        (decides("PostToolUse", additionalContext="by hand"), "paid 17\n\nby hand"),
        (decides("PostToolUse", updatedToolOutput="[hidden]"), "[hidden]"),
        ("echo text", "paid 17"),
    ],
)
async def test_answers_about_results(project: Project, answer: str, result: str) -> None:
    """They add to a result, or replace it."""
    project.add("PostToolUse", answer, matcher="pay")
    async with opened(project) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == [result]
    assert project.told[0]["tool_response"] == "paid 17"


async def test_tools_that_fail_have_an_event_of_their_own(project: Project) -> None:
    """With the error, to which a text can be added; a call that was refused has neither."""
    project.add("PostToolUseFailure", decides("PostToolUseFailure", additionalContext="known"))
    project.add("PostToolUse")
    project.add("PreToolUse", "exit 2", matcher="pay")
    steps = [call("break_it"), call("pay", order="1"), say("done")]
    async with opened(project, steps) as (service, _):
        failed, refused = await results(service, (await service.create_session("go")).session_id)
    assert failed.endswith("known")
    assert refused.startswith("not run")
    assert [told["error"] for told in project.told if told["hook_event_name"] != "PreToolUse"] == [
        failed.removesuffix("\n\nknown")
    ]


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse"])
async def test_a_hook_ends_the_turn(project: Project, event: str) -> None:
    """Before the next call of the model, with its reason; the next turn runs."""
    project.add(event, says({"continue": False, "stopReason": "enough"}))
    async with opened(project, [call("pay", order="17"), say("again")]) as (service, model):
        async with service.stream_session("pay") as events:
            with pytest.raises(AgentError, match="enough") as ended:
                await events.result()
        assert ended.value.cause == "denied"
        assert len(model.requests) == 1
        assert (await service.start_turn(events.session_id, "go on")).text == "again"


@pytest.mark.parametrize("answer", ["echo 'no cats' >&2; exit 2", says({"decision": "block", "reason": "no cats"})])
async def test_a_prompt_is_denied(project: Project, answer: str) -> None:
    """It does not enter the conversation, and the caller gets the reason."""
    project.add("UserPromptSubmit", answer)
    async with opened(project) as (service, model):
        with pytest.raises(AgentError, match="no cats") as denied:
            await service.create_session("cats")
        assert denied.value.cause == "denied"
        assert model.requests == []
    assert project.told[0]["prompt"] == "cats"


@pytest.mark.parametrize("answer", ["echo on main", decides("UserPromptSubmit", additionalContext="on main")])
async def test_context_for_a_prompt(project: Project, answer: str) -> None:
    """A text on stdout or in JSON is read by the model beside the prompt."""
    project.add("UserPromptSubmit", answer)
    async with opened(project, [say("done")]) as (service, model):
        session_id = (await service.create_session("where?")).session_id
        assert await context(service, session_id) == ["on main"]
    assert "on main" in str(model.requests[0].messages)


async def test_context_for_a_session(project: Project) -> None:
    """Comes with its first turn alone; that it cannot be blocked is a note in the log."""
    project.add("SessionStart", "echo conventions", matcher="startup")
    project.add("SessionStart", "echo never", matcher="resume")
    project.add("SessionStart", "echo no >&2; exit 2")
    async with opened(project, [say("one"), say("two")]) as (service, _):
        session_id = (await service.create_session("a")).session_id
        await service.start_turn(session_id, "b")
        assert await context(service, session_id) == ["conventions"]
    assert [told["source"] for told in project.told] == ["startup", "startup"]


async def test_the_end_of_a_turn_is_blocked(project: Project) -> None:
    """The model reads the reason and goes on, in the same turn; the hook is told that it has gone on."""
    unless = 'case "$body" in *\'"stop_hook_active":true\'*) exit 0;; esac; echo "run the tests" >&2; exit 2'
    project.add("Stop", unless, matcher="ignored")
    async with opened(project, [say("I think so"), say("tests pass")]) as (service, model):
        result = await service.create_session("fix it")
        assert result.text == "tests pass"
        history = (await service.history(result.session_id)).messages
        prompts = [each.message.content for each in history if isinstance(each.message, UserMessage)]
        assert prompts == ["fix it", "run the tests"]
    assert len(model.requests) == 2
    assert [(told["stop_hook_active"], told["last_assistant_message"]) for told in project.told] == [
        (False, "I think so"),
        (True, "tests pass"),
    ]


async def test_the_end_of_a_turn_cannot_be_blocked_for_ever(project: Project) -> None:
    """After eight times in a row it ends."""
    project.add("Stop", "echo again >&2; exit 2")
    async with opened(project, [say(str(number)) for number in range(20)]) as (service, model):
        assert (await service.create_session("go")).text == "8"
        assert len(model.requests) == 9


async def test_the_end_is_blocked_where_no_step_is_left(project: Project) -> None:
    """The text begins a turn then, which counts among the eight."""
    project.add("Stop", "echo again >&2; exit 2")
    steps = [say(str(number)) for number in range(20)]
    async with opened(project, steps, limits=Limits(turn=Budget(max_steps=1))) as (service, model):
        session_id = (await service.create_session("go")).session_id
        for _ in range(8):
            await service.wait_turn(session_id)
        assert len(model.requests) == 9
        assert await service.inputs(session_id) == ()


async def test_a_child_has_an_event_of_its_own(project: Project) -> None:
    """The end of its turn is that of a subagent."""
    project.add("SubagentStop")
    project.add("Stop")
    async with opened(project, [say("done")]) as (service, _):
        parent = (await service.create_session("a")).session_id
        child = await service.delegate(parent, "work")
        await service.wait_turn(child)
    kinds = {told["session_id"]: told["hook_event_name"] for told in project.told}
    assert kinds == {parent: "Stop", child: "SubagentStop"}


async def test_a_compaction_is_denied(project: Project) -> None:
    """The context stays as it is."""
    project.add("PreCompact", "echo keep >&2; exit 2", matcher="manual")
    compaction = CompactionConfig(100_000, recent_turn_budget=1)
    async with opened(project, [say("one"), say("two"), say("three")], compaction=compaction) as (service, _):
        session_id = (await service.create_session("a")).session_id
        await service.start_turn(session_id, "b")
        with pytest.raises(AgentError, match="keep"):
            await service.compact(session_id, instructions="be brief")
    assert (project.told[0]["trigger"], project.told[0]["custom_instructions"]) == ("manual", "be brief")


async def test_a_hook_in_the_background(project: Project) -> None:
    """Holds nothing up and decides nothing."""
    project.add("PreToolUse", 'sleep 0.2; touch "$CLAUDE_PROJECT_DIR/late"; exit 2', background=True)
    async with opened(project) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == ["paid 17"]
        while not (project.folder / "late").exists():  # noqa: ASYNC110 - a file
            await trio.sleep(0.01)


async def test_hooks_of_a_tenant(project: Project) -> None:
    """Are for its sessions alone."""
    guard = HookEntry(event="PreToolUse", command="echo 'not at acme' >&2; exit 2", tenants=("acme",))
    async with opened(project, hooks_files=(), hook_commands=(guard,)) as (service, _):
        assert await results(service, (await service.create_session("pay")).session_id) == ["paid 17"]
        acme = service.as_(Principal("acme"))
        assert await results(acme, (await acme.create_session("pay")).session_id) == ["not run: not at acme"]


async def test_an_address_decides(project: Project) -> None:
    """The same JSON is posted, and the answer has the same form; 403 denies."""

    async def answer(stream: trio.SocketStream, posted: Posted) -> None:
        body = b"nope"
        assert posted.event["tool_name"] == "pay"
        await stream.send_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async with receiving(answer) as receiver:
        guard = HookEntry(event="PreToolUse", url=receiver.url)
        limits = Limits(webhook_allow=("127.0.0.0/8",))
        async with opened(project, hooks_files=(), hook_commands=(guard,), limits=limits) as (service, _):
            assert await results(service, (await service.create_session("pay")).session_id) == ["not run: nope"]


async def test_few_commands_run_at_once(project: Project) -> None:
    """The others wait: a session with many calls cannot fill the machine."""
    counts = (
        'd="$CLAUDE_PROJECT_DIR/running"; mkdir -p "$d"; touch "$d/$$"; ls "$d" | wc -l >> "$CLAUDE_PROJECT_DIR/most"; '
        'sleep 0.1; rm "$d/$$"'
    )
    project.add("PreToolUse", counts)
    steps = [[call("pay", order=str(number)) for number in range(8)], say("done")]
    async with opened(project, steps, limits=Limits(hook_processes=2)) as (service, _):
        assert len(await results(service, (await service.create_session("pay")).session_id)) == 8
    most = [int(each) for each in (project.folder / "most").read_text().split()]
    assert len(most) == 8
    assert max(most) <= 2


async def test_a_bad_file_opens_no_runtime(project: Project) -> None:
    """A guard that cannot be read must not be missing silently."""
    with pytest.raises(InvalidParamsError, match="the file cannot be read"):
        async with opened(project):
            pass
