"""Tools that a runtime has by its settings: who is offered them, what they do, and when they end."""

import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.tools.mcp.world import bare, exists, pids
from tests.support.models import Emit, FunctionModel, reply
from tests.support.waiting import until
from warren.actors.tools.session_tools import SessionTools
from warren.actors.tools.workspace import workspace_of
from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.base.fields import FieldValueError
from warren.base.principals import Principal
from warren.calls.facade import RuntimeService
from warren.conversation.categories import Gates, Switches
from warren.conversation.events import Envelope, ToolApprovalRequested
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import Message, SystemMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.settings.tool_config import McpServer, ToolsConfig
from warren.transport.embed import Hosted, open_host

FILES = {"read_file", "list_files", "search_files"}
WRITING = {"write_file", "edit_file"}
CLOCK = {"datetime_now", "wait"}
ON = Switches(builtins="enable", shell="enable")
SKILL = "---\nname: baking\ndescription: How to bake bread.\n---\nKnead for ten minutes."


@attrs.define
class Caller:
    """A model that makes the calls it was given, one step a call, and then repeats what came of the last.

    Attributes:
        calls: tool and arguments.
        requests: what it was asked.
    """

    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    requests: list[ModelRequest] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        done = _results_since_the_prompt(request.messages)
        if len(done) < len(self.calls):
            name, args = self.calls[len(done)]
            return reply("", ToolUseBlock(f"call-{len(done)}", name, args))
        return reply(done[-1] if done else "nothing to do")

    @property
    def offered(self) -> set[str]:
        return {spec.name for spec in self.requests[-1].tools}

    @property
    def told(self) -> str:
        """The instructions."""
        first = self.requests[-1].messages[0]
        return first.content if isinstance(first, SystemMessage) else ""


def _results_since_the_prompt(messages: Sequence[Message]) -> list[str]:
    found: list[str] = []
    for message in messages:
        if isinstance(message, UserMessage):
            found = []
        elif isinstance(message, ToolResultsMessage):
            found += [result.content for result in message.results]
    return found


@asynccontextmanager
async def hosting(
    tools: ToolsConfig | None, model: Caller, *, own: Sequence[Tool] = (), **settings: Any
) -> AsyncIterator[Hosted]:
    """Run Warren with tools and one model, and the host's `own` tools."""
    config = Config(tools=tools, provider="caller", **settings)
    environ = {"PATH": "/usr/bin:/bin", "SECRET": "s3cret", "SHOWN": "shown"}
    providers = {"caller": FunctionModel(model.complete)}
    async with open_host(config, tools=own, providers=providers, environ=environ) as hosted:
        yield hosted


def session_tools(hosted: Hosted) -> SessionTools:
    """Return what gives sessions servers."""
    assert hosted.session_tools is not None
    return hosted.session_tools


async def new(service: RuntimeService, **settings: Any) -> str:
    """Create a session; return its id."""
    return (await service.create_session(None, **settings)).session_id


async def test_without_settings_there_are_none() -> None:
    """A runtime that is told of no tools has none, and no way to servers."""
    async with hosting(None, model := Caller()) as hosted:
        await hosted.service.create_session("hi")
        kinds = hosted.service.capabilities().tools
        assert (model.offered, kinds["builtins"], kinds["mcp"]) == (set(), "unavailable", "unavailable")
        assert hosted.session_tools is None
        assert hosted.service.health().mcp is None


async def test_what_touches_the_machine_is_offered_where_it_is_enabled(tmp_path: Path) -> None:
    """There, but off: a session or a turn that enables a kind has it, all others do not."""
    async with hosting(ToolsConfig(root=tmp_path, shell=True, fetch=True), model := Caller()) as hosted:
        service = hosted.service
        assert {service.capabilities().tools[kind] for kind in ("builtins", "shell")} == {"off"}
        session_id = (await service.create_session("hi")).session_id
        assert model.offered == set()
        await service.start_turn(session_id, "now", overrides=Switches(shell="enable"))
        assert model.offered == {"shell"}
        await service.create_session("hi", overrides=Switches(builtins="enable"))
        assert model.offered == FILES | WRITING | CLOCK | {"fetch"}


async def test_tools_that_only_read_are_replayed(tmp_path: Path) -> None:
    """A call of a tool that changes nothing runs again after a crash; writes and commands are reported."""
    config = ToolsConfig(root=tmp_path, shell=True, fetch=True, skills=())
    restarts = {each.spec.name: each.restart for each in (await workspace_of(config, {}, memory=True)).tools}
    reporting = WRITING | {"shell"}
    assert restarts == dict.fromkeys(FILES | CLOCK | {"fetch", "load_skill"}, "replay") | dict.fromkeys(
        reporting, "report"
    )


async def test_the_folder_and_the_shell_are_for_the_default_tenant_alone(tmp_path: Path) -> None:
    """All sessions would work in one folder, so those of other tenants have neither, whatever they enable or name."""
    config = ToolsConfig(root=tmp_path, shell=True, fetch=True)
    async with hosting(config, model := Caller(), own=[tool(own_tool)], switches=ON) as hosted:
        await hosted.service.create_session("hi")
        assert model.offered == FILES | WRITING | CLOCK | {"fetch", "shell", "own_tool"}
        acme = hosted.service.as_(Principal("acme", "ann"))
        for overrides in (None, ON):
            await acme.create_session("hi", overrides=overrides)
            assert model.offered == CLOCK | {"fetch", "own_tool"}
        for name in ("read_file", "shell"):
            with pytest.raises(InvalidParamsError, match=f"there is no tool '{name}'"):
                await acme.create_session("hi", tools=("wait", name))
        await acme.create_session("hi", tools=("wait",))
        assert model.offered == {"wait"}


def own_tool() -> str:
    """Return a word."""
    return "word"


async def test_what_there_is_follows_the_settings(tmp_path: Path) -> None:
    """Nothing is there that was not asked for: no writing, no shell, no web."""
    async with hosting(ToolsConfig(root=tmp_path, writable=False), model := Caller(), switches=ON) as hosted:
        await hosted.service.create_session("hi")
        assert model.offered == FILES | CLOCK
        with pytest.raises(InvalidParamsError, match=r"\$.overrides.shell: this runtime has no shell tools"):
            await hosted.service.create_session("hi", overrides=Switches(shell="enable"))


async def test_calls_do_what_they_say(tmp_path: Path) -> None:
    """A file is written under the root, a command sees it, and of our environment only what was let through."""
    command = {"command": "cat note.txt; echo $SECRET; echo $SHOWN"}
    model = Caller([("write_file", {"path": "note.txt", "content": "written\n"}), ("shell", command)])
    async with hosting(ToolsConfig(root=tmp_path, shell=True, env=("SHOWN",)), model, switches=ON) as hosted:
        answer = (await hosted.service.create_session("go")).text
    assert (tmp_path / "note.txt").read_text() == "written\n"
    assert answer.split("\n")[1:] == ["written", "", "shown", ""]
    assert answer.startswith("[exit code 0")


async def test_the_gate_of_a_kind_holds_for_its_tools(tmp_path: Path) -> None:
    """A call of a builtin waits for somebody's word where its kind asks for one; refused, it touches nothing."""
    model = Caller([("write_file", {"path": "note.txt", "content": "written"})])
    gates = Gates(builtins="ask")
    async with (
        hosting(ToolsConfig(root=tmp_path), model, switches=ON, gates=gates) as hosted,
        trio.open_nursery() as nursery,
    ):
        session_id = await new(hosted.service)
        waiting = trio.Event()

        def listen(item: Envelope) -> None:
            if isinstance(item.event, ToolApprovalRequested):
                waiting.set()

        async def turn() -> None:
            await hosted.service.start_turn(session_id, "go", on_event=listen)

        nursery.start_soon(turn)
        await waiting.wait()
        await hosted.service.approve_tool(session_id, "call-0", "deny")
    assert not (tmp_path / "note.txt").exists()


async def test_skills_are_listed_where_they_can_be_loaded(tmp_path: Path) -> None:
    """The instructions of a session name them after its own words, unless it has no tool to load them."""
    (tmp_path / "baking.md").write_text(SKILL)
    model = Caller([("load_skill", {"name": "baking"})])
    async with hosting(ToolsConfig(skills=(tmp_path,)), model) as hosted:
        assert (await hosted.service.create_session("go", system_prompt="Be kind.")).text == "Knead for ten minutes."
        first, _, rest = model.told.partition("\n\n")
        assert first == "Be kind."
        assert rest.split("\n")[1:] == ["- baking: How to bake bread."]
        model.calls = ()
        await hosted.service.create_session("go", tools=[], system_prompt="Be kind.")
        assert (model.told, model.offered) == ("Be kind.", set())
        await hosted.service.create_session("go", overrides=Switches(callback="disable"))
        assert model.told == ""


async def test_skills_that_need_a_memory_are_there_with_one() -> None:
    """Without folders there are those that Warren ships: the one on the memory, where there is a memory."""
    async with hosting(ToolsConfig(skills=()), model := Caller()) as hosted:
        await hosted.service.create_session("go")
        assert (model.offered, model.told) == (set(), "")
    async with hosting(ToolsConfig(skills=()), model, memory=MemoryConfig(None)) as hosted:
        await hosted.service.create_session("go")
        assert "load_skill" in model.offered
        assert "\n- memory-retrieval: " in model.told


async def test_a_tool_of_the_host_in_the_place_of_the_skills(tmp_path: Path) -> None:
    """A host that has a tool of that name loads its own things by it: nothing is said of skills."""
    (tmp_path / "baking.md").write_text(SKILL)

    @tool
    def load_skill() -> str:
        """Load the truck."""
        return "loaded"

    model = Caller([("load_skill", {})])
    async with hosting(ToolsConfig(skills=(tmp_path,)), model, own=[load_skill]) as hosted:
        assert (await hosted.service.create_session("go", system_prompt="Be kind.")).text == "loaded"
        assert model.told == "Be kind."


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        (ToolsConfig(root=Path("/nowhere/at/all")), "$.tools.root"),
        (ToolsConfig(fetch=True, fetch_allow=("10.0.0.0/99",)), "$.tools.fetch_allow"),
    ],
)
async def test_settings_that_cannot_be_obeyed(tools: ToolsConfig, path: str) -> None:
    """The runtime does not start, and the error names the setting."""
    with pytest.raises(InvalidParamsError) as caught:
        async with hosting(tools, Caller()):
            raise AssertionError("it started")
    assert caught.value.path == path
    assert str(caught.value).startswith(path)


def test_settings_that_contradict(tmp_path: Path) -> None:
    """A shell needs a folder, and a server of all sessions has to bear with all of them."""
    with pytest.raises(FieldValueError, match="root is required"):
        ToolsConfig(shell=True)
    with pytest.raises(FieldValueError, match="mcp_servers must be shared"):
        ToolsConfig(mcp_servers=(bare(tmp_path, "own", shared=False),))


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("re2", lambda folder: ToolsConfig(root=folder), "pip install 'warren[tools]'"),
        ("yaml", lambda folder: ToolsConfig(skills=(folder,)), "pip install 'warren[skills]'"),
        ("mcp", lambda folder: ToolsConfig(mcp_servers=(bare(folder, "any"),)), "pip install 'warren[mcp]'"),
    ],
)
async def test_an_extra_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: Any, extra: str
) -> None:
    """The error names it."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidParamsError, match=re.escape(extra)):
        async with hosting(make(tmp_path), Caller()):
            raise AssertionError("it started")


# -- MCP servers


async def test_servers_of_the_runtime(tmp_path: Path) -> None:
    """Every session has their tools, also under names that others have; health tells of each; at the end they go."""
    model = Caller([("square", {"n": 7})])
    servers = (bare(tmp_path, "first"), bare(tmp_path, "broken", "dies"))
    async with hosting(ToolsConfig(mcp_servers=servers), model) as hosted:
        assert hosted.service.capabilities().tools["mcp"] == "on"
        assert (await hosted.service.create_session("go")).text == "49"
        assert model.offered == {"square", "hang", "die"}
        health = hosted.service.health()
        found = [(each.name, each.status) for each in health.mcp or ()]
        assert (health.status, found) == ("degraded", [("first", "ok"), ("broken", "degraded")])
        assert "no database here" in str((health.mcp or ())[1].last_error)
        await hosted.service.create_session("go", tools=["square"])
        assert model.offered == {"square"}
        with pytest.raises(InvalidParamsError, match="MCP servers that are not connected are unknown: broken"):
            await hosted.service.create_session("go", tools=["look_up"])
    assert not any(exists(pid) for name in ("first", "broken") for pid in pids(tmp_path, name))


async def test_a_tool_of_a_server_takes_nobodys_name(tmp_path: Path) -> None:
    """In a turn that has a tool of that name already the server's is called after the server too."""

    @tool
    async def square(n: int) -> str:
        """Say no."""
        await trio.lowlevel.checkpoint()
        return f"not {n}"

    model = Caller([("square", {"n": 7}), ("first_square", {"n": 7})])
    async with hosting(ToolsConfig(mcp_servers=(bare(tmp_path, "first"),)), model) as hosted:
        session_id = await new(hosted.service)
        assert (await hosted.service.start_turn(session_id, "go", extra_tools=[square])).text == "49"
        assert _results_since_the_prompt(model.requests[-1].messages) == ["not 7", "49"]


async def test_servers_of_one_session(tmp_path: Path) -> None:
    """Their tools are that session's alone, and their processes end with it."""
    model = Caller()
    async with hosting(ToolsConfig(), model, store=StoreConfig(tmp_path / "store")) as hosted:
        service, tools = hosted.service, session_tools(hosted)
        mine, other = await new(service), await new(service)
        await tools.add_servers(mine, [bare(tmp_path, "own")])
        await service.start_turn(mine, "go")
        assert model.offered == {"square", "hang", "die"}
        await service.start_turn(other, "go")
        assert model.offered == set()
        assert service.health().mcp is None
        await tools.drop_servers(mine)
        assert not any(exists(pid) for pid in pids(tmp_path, "own"))
        await service.start_turn(mine, "again")
        assert model.offered == set()
        await tools.drop_servers(other)


async def test_servers_outlive_their_sessions_place_in_memory(tmp_path: Path) -> None:
    """A session that leaves memory, and comes back with its next turn, still has its servers."""
    settings: dict[str, Any] = {"store": StoreConfig(tmp_path / "store"), "limits": Limits(max_live=1)}
    async with hosting(ToolsConfig(), model := Caller([("square", {"n": 7})]), **settings) as hosted:
        mine = await new(hosted.service)
        await session_tools(hosted).add_servers(mine, [bare(tmp_path, "own")])
        other = await new(hosted.service)
        await hosted.service.start_turn(other, "go")
        await until(lambda: hosted.service.health().live_sessions == 1)
        assert (await hosted.service.read(mine)).state.lifecycle == "stored"
        assert (await hosted.service.start_turn(mine, "go")).text == "49"
        assert len(pids(tmp_path, "own")) == 1
    assert model.offered == {"square", "hang", "die"}


@pytest.mark.parametrize("end", ["archive", "delete"])
async def test_servers_end_with_their_session(tmp_path: Path, end: str) -> None:
    """Nobody has to drop the servers of a session that is archived or deleted."""
    async with hosting(ToolsConfig(), Caller(), store=StoreConfig(tmp_path / "store")) as hosted:
        session_id = await new(hosted.service)
        await session_tools(hosted).add_servers(session_id, [bare(tmp_path, "own")])
        (pid,) = pids(tmp_path, "own")
        assert exists(pid)
        await getattr(hosted.service, end)(session_id)
        await until(lambda: not exists(pid))


async def test_a_server_in_the_place_of_another(tmp_path: Path) -> None:
    """Of servers with one name the last counts; the same one again changes nothing, and others stay."""
    model = Caller([("square", {"n": 3})])
    async with hosting(ToolsConfig(), model) as hosted:
        session_id = await new(hosted.service)
        tools = session_tools(hosted)
        await tools.add_servers(session_id, [bare(tmp_path, "one"), bare(tmp_path, "two")])
        await tools.add_servers(session_id, [bare(tmp_path, "one"), bare(tmp_path, "two")])
        assert len(pids(tmp_path, "one")) == 1
        await tools.add_servers(session_id, [attrs.evolve(bare(tmp_path, "two", "noisy"), name="one")])
        await hosted.service.start_turn(session_id, "go")
        assert {"one_square", "two_square"} <= model.offered
        assert not exists(pids(tmp_path, "one")[0])


async def test_servers_that_cannot_be_given(tmp_path: Path) -> None:
    """Two of one name are refused by the field, and so is a session that is not there; nothing was started."""
    async with hosting(ToolsConfig(), Caller()) as hosted:
        tools = session_tools(hosted)
        session_id = await new(hosted.service)
        with pytest.raises(InvalidParamsError) as caught:
            await tools.add_servers(session_id, [bare(tmp_path, "own"), bare(tmp_path, "own")])
        assert caught.value.path == "$.mcp_servers[1].name"
        with pytest.raises(SessionNotFoundError):
            await tools.add_servers("0198a000-0000-7000-8000-00000000beef", [McpServer("x", command="true")])
        assert pids(tmp_path, "own") == []


async def test_a_host_that_gives_up_waiting_has_no_server(tmp_path: Path) -> None:
    """Cancelled while they connect, they are gone, and can be added again."""
    async with hosting(ToolsConfig(), Caller()) as hosted:
        session_id = await new(hosted.service)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def give_up() -> None:
                    await until(lambda: pids(tmp_path, "slow"))
                    scope.cancel()

                nursery.start_soon(give_up)
                await session_tools(hosted).add_servers(session_id, [bare(tmp_path, "slow", "mute")])
        await until(lambda: not any(exists(pid) for pid in pids(tmp_path, "slow")))
        await session_tools(hosted).add_servers(session_id, [bare(tmp_path, "own")])
        assert exists(pids(tmp_path, "own")[0])


async def test_an_error_of_the_host_ends_the_servers_of_its_sessions(tmp_path: Path) -> None:
    """A host that fails while a session has servers hears of its own error, and nothing goes on without it."""

    async def fail() -> None:
        async with hosting(ToolsConfig(root=tmp_path), Caller()) as hosted:
            session_id = await new(hosted.service)
            await session_tools(hosted).add_servers(session_id, [McpServer("none", command=str(tmp_path / "none"))])
            raise ZeroDivisionError

    with trio.fail_after(20), pytest.raises(ZeroDivisionError):
        await fail()
