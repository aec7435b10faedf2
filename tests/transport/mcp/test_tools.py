"""The tools, as the official client finds and calls them."""

import json
import re
from typing import Any

import attrs
import jsonschema  # type: ignore[import-untyped]
import pytest
import trio

from tests.support.fake_service import FakeService, hit
from tests.support.models import FunctionModel, Puppet, reply, says
from tests.support.runtime import new_session, open_runtime
from tests.transport.mcp.clients import ERAS, connected
from warren.base.errors import ProviderError
from warren.calls.facade import Capabilities, RuntimeService
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.messages import AssistantMessage, ReasoningBlock, TextBlock, ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply
from warren.models.tools import tool
from warren.settings.config import Config, Limits
from warren.transport.mcp.schemas import input_schema, result_schema
from warren.transport.mcp.tools import TOOLS

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"


@attrs.define(eq=False)
class Remembering(FakeService):
    """A runtime whose memory is on."""

    def capabilities(self) -> Capabilities:
        return Capabilities(session_store=True, session_compaction=True, memory_store=True)


@tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def shown(value: object) -> Any:
    """Return a domain object as clients get it."""
    return json.loads(codec.encode(value))


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_is_listed_with_its_schemas(era: str) -> None:
    """A client learns of each tool what it takes and returns, in schemas that are valid ones, and what it does."""
    async with connected(Remembering(), era) as program:
        listed = (await program.client.list_tools()).tools
    assert [found.name for found in listed] == list(TOOLS)
    for found in listed:
        assert found.output_schema is not None
        for schema in (found.input_schema, found.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert all("description" in argument for argument in found.input_schema["properties"].values()), found.name
        assert found.description
        assert found.annotations is not None
    harmless = {found.name for found in listed if found.annotations and found.annotations.read_only_hint}
    of_work = {"wait", "agents", "agent", "approvals", "inputs", "schedules", "triggers", "webhooks", "deliveries"}
    reading = {*of_work, "sessions", "read", "history", "memory_search"}
    assert harmless == {f"warren_{name}" for name in reading}


async def test_an_error_fits_the_schema_of_every_result() -> None:
    """Clients that check the structured content of errors too are not kept from showing them; nonsense fits none."""
    async with connected(Remembering()) as program:
        listed = (await program.client.list_tools()).tools
        body = await program.fail("warren_read", session_id=NOBODY)
    for found in listed:
        assert found.output_schema is not None
        schema = jsonschema.Draft202012Validator(found.output_schema)
        assert schema.is_valid(body), found.name
        assert not schema.is_valid({}), found.name
        assert not schema.is_valid({"code": "NONSENSE", "message": "", "retryable": False}), found.name


async def test_the_memory_is_offered_only_where_there_is_one() -> None:
    """Without a memory its tools are not listed, and whoever calls it nevertheless is told what is missing."""
    async with open_runtime() as service, connected(service) as program:
        names = [found.name for found in (await program.client.list_tools()).tools]
        assert names == [name for name in TOOLS if not name.startswith("warren_memory")]
        body = await program.fail("warren_memory_search", query="oats", scope="project")
    assert body["code"] == "SESSION_MEMORY_DISABLED"


async def test_the_memory_is_searched() -> None:
    """The hits of the runtime come as it is, with the arguments that the client gave."""
    service = Remembering(hits=[hit("it was oats", 0.9, "s1", 2)])
    async with connected(service) as program:
        found = await program.ask("warren_memory_search", query="oats", scope="project", limit=3)
    assert service.hits is not None
    assert found == {"hits": [codec.to_data(service.hits[0])]}
    assert service.calls == [
        ("search_memory", {"query": "oats", "scope": "project", "limit": 3, "session_id": None}),
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_lives_through_the_tools(era: str) -> None:
    """It is run, resumed, listed, read and archived, and each answer is what the runtime itself says."""
    async with open_runtime() as service, connected(service, era) as program:
        first = await program.ask("warren_run", prompt="one", labels={"team": "red"})
        session_id = first["session_id"]
        assert (first["text"], first["turns"], first["stop_reason"]) == ("one", 1, "end_turn")
        assert (await program.ask("warren_resume", session_id=session_id, prompt="two"))["text"] == "two"
        assert await program.ask("warren_read", session_id=session_id) == shown(await service.read(session_id))
        history = await program.ask("warren_history", session_id=session_id, offset=1, limit=2)
        assert history == shown(await service.history(session_id, offset=1, limit=2))
        await service.create_session("unlabelled")
        listed = await program.ask("warren_sessions", labels={"team": "red"})
        assert [row["session_id"] for row in listed["sessions"]] == [session_id]
        assert await program.ask("warren_archive", session_id=session_id) == {"archived": True}
        assert (await program.fail("warren_resume", session_id=session_id, prompt="x"))["code"] == "SESSION_NOT_FOUND"


async def test_a_session_can_be_created_without_a_turn() -> None:
    """A null prompt makes a session that its first warren_resume starts."""
    async with open_runtime() as service, connected(service) as program:
        made = await program.ask("warren_run", prompt=None)
        assert (made["text"], made["turns"], made["stop_reason"]) == ("", 0, None)
        assert (await program.ask("warren_resume", session_id=made["session_id"], prompt="hi"))["text"] == "hi"


async def test_a_history_of_every_kind_of_message_keeps_to_its_schema() -> None:
    """Reasoning, tool calls with good and bad arguments and their results pass the check that the client makes."""
    call = ToolUseBlock("c1", "add", {"left": 1, "right": 2}, metadata={"signature": "s"})
    broken = ToolUseBlock("c2", "add", invalid_args="{")
    thinking = ReasoningBlock("hm", {"signature": "s"})
    steps = ModelReply(AssistantMessage((thinking, TextBlock("let me see"), call, broken), "tool_use"), Usage())
    config = Config(system_prompt="be brief")
    async with open_runtime(says(steps, reply("3")), tools=[add], config=config) as service, connected(service) as own:
        session_id = (await own.ask("warren_run", prompt="1 + 2?"))["session_id"]
        messages = (await own.ask("warren_history", session_id=session_id))["messages"]
    assert [item["message"]["role"] for item in messages] == [
        "system",
        "user",
        "assistant",
        "tool_results",
        "assistant",
    ]
    assert [block["type"] for block in messages[2]["message"]["blocks"]] == [
        "reasoning",
        "text",
        "tool_use",
        "tool_use",
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "path"),
    [
        ("warren_run", {}, "$"),
        ("warren_run", {"prompt": 1}, "$.prompt"),
        ("warren_run", {"prompt": " "}, "$.prompt"),
        ("warren_run", {"prompt": "x", "colour": "red"}, "$.colour"),
        ("warren_run", {"prompt": "x", "max_tokens": 0}, "$.max_tokens"),
        ("warren_run", {"prompt": "x", "budget": {"max_steps": "3"}}, "$.budget.max_steps"),
        ("warren_run", {"prompt": "x", "labels": {"a": 1}}, "$.labels.a"),
        ("warren_run", {"prompt": "x", "tools": ["none such"]}, "$.tools[0]"),
        ("warren_run", {"prompt": "x", "tools": "add"}, "$.tools"),
        ("warren_run", {"prompt": "x", "model": "no such model"}, "$.model"),
        ("warren_resume", {"prompt": "x"}, "$"),
        ("warren_sessions", {"limit": 0}, "$.limit"),
        ("warren_sessions", {"limit": True}, "$.limit"),
        ("warren_history", {"session_id": NOBODY, "offset": -1}, "$.offset"),
        ("warren_read", {"session_id": None}, "$.session_id"),
    ],
)
async def test_a_bad_argument_is_named(name: str, arguments: dict[str, Any], path: str) -> None:
    """Whatever is wrong with an argument is an error result with its path, and nothing is created."""
    async with open_runtime() as service, connected(service) as program:
        body = await program.fail(name, **arguments)
        assert (body["code"], body["retryable"]) == ("INVALID_PARAMS", False)
        assert body["details"]["path"].startswith(path)
        assert (await program.ask("warren_sessions"))["sessions"] == []


async def test_errors_of_the_runtime_come_with_their_codes() -> None:
    """Each refusal is a result marked as an error, with the body that every surface shows."""
    failing = says(ProviderError("no such model", cause="not_found"))
    limits = Limits(max_sessions=1)
    async with open_runtime(failing, config=Config(limits=limits)) as service, connected(service) as program:
        lost = await program.fail("warren_run", prompt="hi")
        assert (lost["code"], lost["message"], lost["retryable"]) == ("PROVIDER_ERROR", "no such model", False)
        session_id = lost["session_id"]
        assert (await program.ask("warren_read", session_id=session_id))["state"]["is_active"] is False
        assert (await program.fail("warren_read", session_id=NOBODY))["code"] == "SESSION_NOT_FOUND"
        assert (await program.fail("warren_interrupt", session_id=session_id))["code"] == "SESSION_NOT_RUNNING"
        body = await program.fail("warren_run", prompt="x", compaction={"recent_turn_budget": 1})
        assert body["code"] == "SESSION_COMPACTION_DISABLED"


async def test_a_budget_that_runs_out_is_an_error_with_the_text_so_far() -> None:
    """The result of such a turn is an error that names the budget."""
    config = Config(limits=Limits(turn=Budget(max_tokens=4)))
    step = reply("I shall add", ToolUseBlock("c", "add", {"left": 1, "right": 1}))
    async with open_runtime(says(step), tools=[add], config=config) as service, connected(service) as program:
        body = await program.fail("warren_run", prompt="add")
    assert body["code"] == "BUDGET_EXHAUSTED"
    assert body["details"]["text"] == "I shall add"


async def test_a_compaction_can_be_asked_for() -> None:
    """With the capability, a session takes the settings that the client names."""
    config = Config(compaction=CompactionConfig())
    async with open_runtime(config=config) as service, connected(service) as program:
        assert (await program.ask("warren_run", prompt="x", compaction={"recent_turn_budget": 1}))["text"] == "x"


async def test_calls_run_side_by_side() -> None:
    """While a turn waits for its model, a second session runs and other requests are answered."""
    gate = trio.Event()

    async def answer(request: Any, emit: Any) -> ModelReply:
        del emit
        if request.messages[-1].content == "slow":
            await gate.wait()
        return reply("done")

    async with open_runtime(FunctionModel(answer)) as service, connected(service) as program:
        slow = await new_session(service)
        answers: list[str] = []

        async def resume() -> None:
            answers.append((await program.ask("warren_resume", session_id=slow, prompt="slow"))["text"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            while not (await program.ask("warren_read", session_id=slow))["state"]["is_active"]:
                pass
            assert (await program.ask("warren_run", prompt="quick"))["text"] == "done"
            assert (await program.fail("warren_resume", session_id=slow, prompt="x"))["code"] == "SESSION_BUSY"
            await program.client.list_tools()
            assert answers == []
            gate.set()
        assert answers == ["done"]


async def test_an_interrupt_ends_the_turn_of_another_call() -> None:
    """warren_interrupt returns once the turn has ended, and the turn's own call says that it was cancelled."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service) as program:
        session_id = await new_session(service)
        bodies: list[Any] = []

        async def resume() -> None:
            bodies.append(await program.fail("warren_resume", session_id=session_id, prompt="talk"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            await model.reached(1)
            assert await program.ask("warren_interrupt", session_id=session_id) == {"interrupted": True}
        (body,) = bodies
        assert (body["code"], body["details"]["cause"]) == ("AGENT_ERROR", "cancelled")


async def test_a_fault_of_ours_is_told_without_its_innards(caplog: pytest.LogCaptureFixture) -> None:
    """A bug behind a tool is an internal error to the client and a traceback in the log; the server goes on."""
    service: RuntimeService = FakeService(on_read=RuntimeError("secret"))
    async with connected(service) as program:
        body = await program.fail("warren_read", session_id="s1")
        await program.client.list_tools()
    assert body == {
        "code": "AGENT_ERROR",
        "message": "internal error",
        "retryable": False,
        "details": {"cause": "internal"},
    }
    assert "secret" in caplog.text


def test_clients_know_every_format_in_the_schemas() -> None:
    """A strict client refuses a tool whose schema has a format that is none of JSON Schema."""
    shown = str([(input_schema(tool), result_schema(tool.method.result)) for tool in TOOLS.values()])
    assert set(re.findall(r"'format': '([^']*)'", shown)) == {"date-time"}
