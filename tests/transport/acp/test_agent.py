"""The agent in front of a real runtime: what a client asks, what it is told, and in which order."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from acp import schema

from tests.storage.damaging import KINDS, put
from tests.support.fake_service import FakeService, failing
from tests.support.models import FunctionModel, GatedModel, reply, says, stuck
from tests.support.runtime import new_session, open_runtime, transcript
from tests.transport.acp.client import FOLDER, Client, connect, said
from warren.base.errors import (
    NUMBERS,
    AgentError,
    CapacityExceededError,
    CompactionDisabledError,
    InvalidParamsError,
    MemoryDisabledError,
    PersistenceDisabledError,
    ProviderError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
    WarrenError,
)
from warren.conversation.budget import Budget
from warren.conversation.messages import AssistantMessage, ReasoningBlock, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.options import CompactionConfig
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, Limits
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.acp.listing import LOOKED_AT, PAGE
from warren.transport.providers.scripted import ScriptedModel, ScriptedStep

CALL = ToolUseBlock("c1", "look", {"at": "door"})


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: blue"


async def thinks_and_looks(request: ModelRequest, emit: Any) -> ModelReply:
    """Think and look at first, then answer."""
    await trio.lowlevel.checkpoint()
    if isinstance(request.messages[-1], UserMessage):
        emit(ReasoningPiece("hm"))
        return ModelReply(AssistantMessage((ReasoningBlock("hm"), CALL), "tool_use"), Usage(10, 5))
    emit(TextPiece("It is "))
    emit(TextPiece("blue."))
    return ModelReply(AssistantMessage((TextBlock("It is blue."),)), Usage(20, 5))


async def test_a_refused_exchange_leaves_the_context() -> None:
    """After the stop reason `refusal` the model does not see the prompt again, as the protocol has it."""
    seen: list[int] = []

    async def declines_once(request: ModelRequest, _emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        seen.append(len(request.messages))
        answer = AssistantMessage((TextBlock("no"),), "end_turn" if len(seen) > 1 else "content_filter")
        return ModelReply(answer, Usage(1, 1))

    async with open_runtime(FunctionModel(declines_once)) as service, connect(service) as client:
        session_id = await client.new()
        reasons = [(await client.prompt(session_id, text)).stop_reason for text in ("rude", "polite")]
    assert reasons == ["refusal", "end_turn"]
    assert seen == [1, 1]


async def test_the_client_learns_what_there_is(tmp_path: Path) -> None:
    """Loading and resuming are offered where there is a store, and only there."""
    async with open_runtime() as service, connect(service) as client:
        bare = (await client.call("initialize", protocolVersion=1)).data
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        stored = (await client.call("initialize", protocolVersion=9, clientCapabilities={"fs": {}})).data
    assert (bare["protocolVersion"], stored["protocolVersion"]) == (1, 1)
    assert (bare["agentCapabilities"]["loadSession"], stored["agentCapabilities"]["loadSession"]) == (False, True)
    assert sorted(bare["agentCapabilities"]["sessionCapabilities"]) == ["close", "list"]
    assert sorted(stored["agentCapabilities"]["sessionCapabilities"]) == ["close", "delete", "list", "resume"]
    assert stored["agentInfo"]["name"] == "warren"


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ({"type": "image", "data": "JVBERi0=", "mimeType": "image/png"}, "$.prompt[1].mimeType"),
        ({"type": "audio", "data": "", "mimeType": "audio/wav"}, "$.prompt[1].data"),
        ({"type": "resource", "resource": {"uri": "file:///%20", "blob": ""}}, "$.prompt[1].resource.blob"),
        ({"type": "resource", "resource": {"uri": "file:///a.pdf", "blob": "JVBERi0="}}, "$.prompt[1].resource"),
    ],
)
async def test_a_bad_file_is_refused_at_its_place_in_the_prompt(file: dict[str, Any], path: str) -> None:
    """Neither the client's mistake nor a kind that the model does not take ends the agent."""

    async def never(_request: ModelRequest, _emit: Any) -> ModelReply:
        raise AssertionError("the model is not called")

    async with open_runtime(FunctionModel(never)) as service, connect(service) as client:
        session_id = await client.new()
        refused = await client.call("session/prompt", sessionId=session_id, prompt=[*said("see"), file])
        assert (refused.data["code"], refused.data["data"]["details"]["path"]) == (-32602, path)
        assert refused.data["message"].startswith(f"{path}: ")


async def test_a_new_session_has_its_folder_and_no_turn() -> None:
    """The folder is a label, the model is not called, and the commands come after the id is known."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new("/home/ann/house")
        view = await service.read(session_id)
        assert (view.state.labels, view.state.message_count) == ({"cwd": "/home/ann/house"}, 0)
        commands = client.heard[-1]["params"]["update"]["availableCommands"]
        assert [command["name"] for command in commands] == ["compact", "memory", "help"]


async def test_a_turn_is_told_in_order() -> None:
    """Thought, tool call from request to result, text and usage come before the answer, whole and in their order."""
    model = FunctionModel(thinks_and_looks)
    config = CompactionConfig(window=1000)
    async with open_runtime(model, tools=[look]) as service, connect(service, config) as client:
        await client.call("initialize", protocolVersion=1, clientCapabilities=ASKED)
        session_id = await client.new()
        ended = await client.prompt(session_id, "which colour has the door?")
        assert ended.kinds() == [
            "agent_thought_chunk",
            "tool_call",
            "tool_call_update",
            "usage_update",
            "agent_message_chunk",
            "usage_update",
            "session_info_update",
        ]
        assert {about for about, _ in ended.updates} == {session_id}
        assert ended.text("agent_thought_chunk") == "hm"
        assert ended.text() == "It is blue."
        calls = [*ended.only("tool_call"), *ended.only("tool_call_update")]
        assert [call["status"] for call in calls] == ["pending", "in_progress", "completed"]
        assert calls[2]["content"][0]["content"]["text"] == "door: blue"
        assert [(update["used"], update["size"]) for update in ended.only("usage_update")] == [(15, 1000), (25, 1000)]
        assert ended.only("session_info_update")[0]["title"] == "which colour has the door?"
        assert ended.stop_reason == "end_turn"
        assert ended.data["usage"]["totalTokens"] == 40


async def test_the_data_of_an_answer_is_in_its_meta(tmp_path: Path) -> None:
    """A session whose answers have a schema tells their data with the answer, and again when it is loaded."""
    model = ScriptedModel((ScriptedStep("It is Ann.", structured=('{"name": "Ann"}',)), ScriptedStep("Hm.")))
    meta = {"warren/structured_output": {"name": "Ann"}}
    async with open_runtime(model, store=tmp_path) as service, connect(service) as client:
        session_id = await new_session(service, output_schema={"type": "object"}, structured_output_retries=0)
        await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert (await client.prompt(session_id, "who?")).data["_meta"] == meta
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert [update.get("_meta") for _, update in loaded.updates][:2] == [None, meta]
        plain = await client.new()
        assert "_meta" not in (await client.prompt(plain, "who?")).data


async def test_blocks_become_one_prompt() -> None:
    """The model gets the text with its links and resources."""
    link = {"type": "resource_link", "uri": "file:///b.py", "name": "b.py"}
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        await client.call("session/prompt", sessionId=session_id, prompt=[*said("fix "), link])
        assert (await transcript(service, session_id))[0] == UserMessage("fix [b.py](file:///b.py)")


async def test_loading_tells_the_conversation_again(tmp_path: Path) -> None:
    """After a restart the client gets every message of it, before the answer, and goes on under the same id."""
    model = FunctionModel(thinks_and_looks)
    async with open_runtime(model, store=tmp_path, tools=[look]) as service, connect(service) as client:
        session_id = await client.new()
        await client.prompt(session_id, "which colour has the door?")
    async with open_runtime(model, store=tmp_path, tools=[look]) as service, connect(service) as client:
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.kinds() == [
            "user_message_chunk",
            "agent_thought_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
        ]
        assert loaded.text("user_message_chunk") == "which colour has the door?"
        assert loaded.only("tool_call_update")[0]["status"] == "completed"
        assert loaded.data["modes"]["currentModeId"] == "default"
        assert (await client.prompt(session_id, "and now?")).stop_reason == "end_turn"
        assert len(await transcript(service, session_id)) == 8


@pytest.mark.parametrize("call", [ToolUseBlock("c1", "lok", {}), ToolUseBlock("c1", "look", {"at": 7})])
async def test_a_refused_call_has_its_result(call: ToolUseBlock, tmp_path: Path) -> None:
    """The client is told at once why a call never ran, in the words that it gets when it loads the session."""
    model = says(reply("", call), reply("then not"))
    async with open_runtime(model, store=tmp_path, tools=[look]) as service, connect(service) as client:
        session_id = await client.new()
        live = (await client.prompt(session_id, "look")).only("tool_call_update")
        again = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
    assert live == again.only("tool_call_update")
    assert (live[0]["status"], len(live[0]["content"])) == ("failed", 1)


async def test_a_long_conversation_is_told_to_its_end(tmp_path: Path) -> None:
    """Loading goes on over as many pages as there are, in order."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        session_id = await new_session(service)
        for number in range(PAGE):
            await service.start_turn(session_id, f"number {number}.")
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.text("user_message_chunk") == "".join(f"number {number}." for number in range(PAGE))


async def test_resuming_tells_nothing_again(tmp_path: Path) -> None:
    """A client that knows the conversation goes on at once."""
    async with open_runtime(store=tmp_path) as service:
        session_id = (await service.create_session("hello")).session_id
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        assert (await client.call("session/resume", sessionId=session_id, cwd="/work")).updates == []
        assert (await client.prompt(session_id, "again")).text() != ""


async def test_without_a_store_nothing_can_be_loaded() -> None:
    """Loading, resuming and deleting say which capability is missing, in the protocol's own number for it."""
    async with open_runtime() as service, connect(service) as client:
        for method in ("session/load", "session/resume", "session/delete"):
            error = (await client.call(method, sessionId="0190", cwd="/work", mcpServers=[])).data
            assert (error["code"], error["data"]["code"]) == (-32601, "SESSION_PERSISTENCE_DISABLED"), method


async def test_sessions_are_listed_by_page_and_folder(tmp_path: Path) -> None:
    """A cursor leads through all of them, newest first; a folder shows its own; each has a name and a place."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        elsewhere = (await service.create_session("not of an editor")).session_id
        made = [(await service.create_session(None, labels={"cwd": "/work"})).session_id for _ in range(PAGE)]
        first = (await client.call("session/list")).data
        rest = (await client.call("session/list", cursor=first["nextCursor"])).data
        rows = [*first["sessions"], *rest["sessions"]]
        assert {row["sessionId"] for row in rows} == {elsewhere, *made}
        assert len(rows) == PAGE + 1
        assert "nextCursor" not in rest
        assert (await client.call("session/list", cwd="/work")).data["sessions"] == [
            row for row in rows if row["cwd"] == "/work"
        ]
        (other,) = [row for row in rows if row["sessionId"] == elsewhere]
        assert (other["cwd"], other["title"]) == (FOLDER, "not of an editor")
        assert other["updatedAt"].endswith("Z")


async def test_pages_with_a_damaged_session(tmp_path: Path) -> None:
    """Whoever pages gets each session that can be read once, wherever on a page the damaged ones are."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        made = [(await service.create_session(None, labels={"cwd": "/work"})).session_id for _ in range(2 * PAGE + 5)]
        newest_first = made[::-1]
        for damaged in (0, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 4):
            bad = newest_first[damaged]
            where = f"session_id = '{bad}'"
            assert put(tmp_path / FILE_NAME, "sessions", "model", KINDS["bad UTF-8"], where)
            made.remove(bad)
            told = [row["sessionId"] for page in await listed(client) for row in page]
            assert told == made[::-1]


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_agents_folder_has_the_sessions_that_are_shown_there(tmp_path: Path, *, damaged: bool) -> None:
    """The ones that no ACP client created are among them; each is told once, however they lie among the others."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        mine: list[str] = []
        for number in range(LOOKED_AT + PAGE):
            folder = {"cwd": "/work"} if number % 3 else {"cwd": FOLDER} if number % 2 else {}
            session_id = (await service.create_session(None, labels=folder)).session_id
            mine += [] if number % 3 else [session_id]
        for bad in [mine.pop(at) for at in (60, 30, 2)] if damaged else []:
            assert put(tmp_path / FILE_NAME, "sessions", "model", KINDS["bad UTF-8"], f"session_id = '{bad}'")
        pages = await listed(client, cwd=FOLDER)
        rows = await listed(client)
    assert [[row["sessionId"] for row in page] for page in pages] == [mine[::-1][:PAGE], mine[::-1][PAGE:]]
    assert [row for page in pages for row in page] == [row for page in rows for row in page if row["cwd"] == FOLDER]


async def test_a_page_of_the_agents_folder_that_is_just_full(tmp_path: Path) -> None:
    """Neither a page without sessions follows it, nor is one that has more the last."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        for _ in range(PAGE):
            await new_session(service)
        assert [len(page) for page in await listed(client, cwd=FOLDER)] == [PAGE]
        last = await new_session(service)
        assert [len(page) for page in await listed(client, cwd=FOLDER)] == [PAGE, 1]
        await service.start_turn(last, "hello")
        assert (await listed(client, cwd=FOLDER))[0][0]["sessionId"] == last


async def listed(client: Client, **given: Any) -> list[list[dict[str, Any]]]:
    """Return the pages of a list of sessions."""
    pages = []
    while True:
        page = (await client.call("session/list", **given)).data
        pages.append(page["sessions"])
        if "nextCursor" not in page:
            return pages
        given["cursor"] = page["nextCursor"]


async def test_a_closed_session_has_no_turn_and_can_be_opened_again(tmp_path: Path) -> None:
    """Closing cancels what runs, answers that prompt first, and forgets nothing that is stored."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        await client.read()
        closing = client.request("session/close", sessionId=session_id)
        await client.write(closing)
        assert (await client.answer_to(prompt)).stop_reason == "cancelled"
        assert (await client.answer_to(closing)).data == {}
        assert [message["id"] for message in client.heard if "id" in message][-2:] == [prompt["id"], closing["id"]]
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.text() == "half an answer"


async def test_closing_without_a_store_lets_go_of_the_session() -> None:
    """A session that nobody could load again does not stay in memory."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        assert (await client.call("session/close", sessionId=session_id)).data == {}
        assert service.health().live_sessions == 0
        assert (await client.prompt(session_id, "hello")).data["code"] == -32002


async def test_a_deleted_session_is_gone(tmp_path: Path) -> None:
    """It is neither listed nor loaded any more."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        assert (await client.call("session/delete", sessionId=session_id)).data == {}
        assert (await client.call("session/list")).data["sessions"] == []
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.data["code"] == -32002


async def test_an_archived_session_is_not_gone_on_with(tmp_path: Path) -> None:
    """Another surface has retired it: neither a prompt nor loading brings it back."""
    async with open_runtime(store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        await service.archive(session_id)
        assert (await client.prompt(session_id, "hello")).data["code"] == -32002
        loaded = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.data["code"] == -32002
        assert (await client.call("session/list")).data["sessions"] == []


async def test_there_are_two_modes() -> None:
    """They can be set; another one, and the mode of nothing, cannot."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        assert (await client.call("session/set_mode", sessionId=session_id, modeId="ask")).data == {}
        other = (await client.call("session/set_mode", sessionId=session_id, modeId="yolo")).data
        assert (other["code"], other["data"]["details"]["path"]) == (-32602, "$.modeId")
        unknown = (await client.call("session/set_mode", sessionId="nobody", modeId="default")).data
        assert unknown["code"] == -32002


@pytest.mark.parametrize(
    ("method", "params", "path"),
    [
        ("initialize", {}, "$.protocolVersion"),
        ("initialize", {"protocolVersion": "1"}, "$.protocolVersion"),
        ("initialize", {"protocolVersion": -1}, "$.protocolVersion"),
        ("session/new", {"mcpServers": []}, "$.cwd"),
        ("session/new", {"cwd": "work", "mcpServers": []}, "$.cwd"),
        ("session/new", {"cwd": "/work"}, "$.mcpServers"),
        ("session/new", {"cwd": "/work", "mcpServers": [{"name": "x"}]}, "$.mcpServers[0].command"),
        ("session/load", {"sessionId": 1, "cwd": "/work", "mcpServers": []}, "$.sessionId"),
        ("session/resume", {"sessionId": "s", "cwd": "work"}, "$.cwd"),
        ("session/list", {"cursor": "x"}, "$.cursor"),
        ("session/list", {"cursor": "9" * 40}, "$.cursor"),
        ("session/list", {"cwd": "work"}, "$.cwd"),
        ("session/set_mode", {"sessionId": "s"}, "$.modeId"),
        ("session/close", {}, "$.sessionId"),
        ("session/prompt", {"sessionId": "s", "prompt": "hello"}, "$.prompt"),
        ("session/prompt", {"sessionId": "s", "prompt": []}, "$.prompt"),
        ("session/prompt", {"sessionId": "s", "prompt": [{"type": "text"}]}, "$.prompt[0].text"),
    ],
)
async def test_bad_parameters_name_their_field(method: str, params: dict[str, Any], path: str) -> None:
    """Each is refused with -32602 and the path of the field, in the client's own spelling."""
    async with open_runtime() as service, connect(service) as client:
        error = (await client.call(method, **params)).data
        assert (error["code"], error["data"]["details"]["path"]) == (-32602, path)


async def test_what_nobody_knows_is_refused_or_passed_over() -> None:
    """An unknown request gets -32601, an unknown or bad notification nothing, and unknown fields do no harm."""
    async with open_runtime() as service, connect(service) as client:
        assert (await client.call("session/teleport")).data["code"] == -32601
        assert (await client.call("_vendor/thing")).data["code"] == -32601
        await client.write(
            {"jsonrpc": "2.0", "method": "$/whatever"},
            {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": 3}},
            {"jsonrpc": "2.0", "id": 77, "result": {}},
            b"",
        )
        reply = await client.call("initialize", protocolVersion=1, newField=[1], _meta={"trace": "x"})
        assert reply.data["protocolVersion"] == 1
        assert len(client.heard) == 3


async def test_the_commands_are_obeyed_by_the_agent(tmp_path: Path) -> None:
    """/help answers without the model and leaves no trace in the conversation."""
    async with open_runtime(says(), store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        ended = await client.prompt(session_id, "/help")
        assert ended.stop_reason == "end_turn"
        assert "/compact" in ended.text()
        assert await transcript(service, session_id) == []


async def test_a_command_without_its_capability_is_an_error() -> None:
    """Compaction and memory that are off give the table's numbers; a search needs words."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        for text, code in (("/compact", "SESSION_COMPACTION_DISABLED"), ("/memory x", "SESSION_MEMORY_DISABLED")):
            error = (await client.prompt(session_id, text)).data
            assert (error["code"], error["data"]["code"]) == (-32602, code)
        wordless = (await client.prompt(session_id, "/memory")).data
        assert (wordless["code"], wordless["data"]["details"]["path"]) == (-32602, "$.prompt")
        assert (await client.prompt("nobody", "/help")).data["code"] == -32002


async def test_a_second_prompt_is_refused_at_once() -> None:
    """It is not queued, commands included, and the first one goes on."""
    model = GatedModel()
    async with open_runtime(model) as service, connect(service) as client:
        session_id = await client.new()
        first = client.request("session/prompt", sessionId=session_id, prompt=said("first"))
        await client.write(first)
        for text in ("second", "/help"):
            error = (await client.prompt(session_id, text)).data
            assert (error["code"], error["data"]["code"]) == (-32600, "SESSION_BUSY")
        model.gate.set()
        assert (await client.answer_to(first)).text() == "done"


async def test_sessions_do_not_wait_for_each_other() -> None:
    """A session is answered while another one's turn runs."""
    model = GatedModel()
    async with open_runtime(model) as service, connect(service) as client:
        busy, idle = await client.new(), await client.new()
        prompt = client.request("session/prompt", sessionId=busy, prompt=said("wait"))
        await client.write(prompt)
        assert (await client.prompt(idle, "/help")).stop_reason == "end_turn"
        model.gate.set()
        assert (await client.answer_to(prompt)).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("budget", "shown"),
    [(Budget(max_tokens=1), "max_tokens"), (Budget(max_steps=1), "max_turn_requests")],
)
async def test_a_budget_that_runs_out_is_a_stop_reason(budget: Budget, shown: str) -> None:
    """It says which kind of limit ended the turn; what was said before is there."""
    model = says(*(reply("looking", ToolUseBlock(f"c{number}", "look", {"at": "it"})) for number in range(3)))
    async with (
        open_runtime(model, tools=[look], config=Config(limits=Limits(turn=budget))) as service,
        connect(service) as client,
    ):
        ended = await client.prompt(await client.new(), "go")
        assert (ended.stop_reason, ended.text()) == (shown, "looking")


async def test_a_failed_turn_is_an_error_after_its_updates() -> None:
    """The text before a failure is heard, and the failure is no end of a turn."""

    async def fails(_request: ModelRequest, emit: Any) -> ModelReply:
        emit(TextPiece("half"))
        await trio.lowlevel.checkpoint()
        raise ProviderError("the model is gone", cause="overloaded")

    async with open_runtime(FunctionModel(fails)) as service, connect(service) as client:
        ended = await client.prompt(await client.new(), "go")
        assert (ended.data["code"], ended.data["data"]["code"]) == (-32603, "PROVIDER_ERROR")
        assert ended.text() == "half"


@pytest.mark.parametrize(
    "error",
    [
        SessionNotFoundError("x"),
        SessionBusyError("x"),
        PersistenceDisabledError("x"),
        CompactionDisabledError("x"),
        StoreError("x"),
        MemoryDisabledError("x"),
        CapacityExceededError("x"),
        ProviderError("x"),
        AgentError("x", cause="crash"),
        InvalidParamsError("x", path="$.prompt"),
    ],
    ids=lambda error: str(error.code),
)
async def test_every_error_has_its_number(error: WarrenError) -> None:
    """The number is the table's, and the body comes along."""
    async with connect(FakeService(failing(error))) as client:
        shown = (await client.prompt("s1", "go")).data
        assert shown == {"code": NUMBERS[error.code].acp, "message": "x", "data": error.body()}


async def test_a_bug_of_ours_ends_one_request(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets an error without our insides, the log has them, and the next request is answered."""
    async with connect(FakeService(failing(RuntimeError("secret")))) as client:
        shown = (await client.prompt("s1", "go")).data
        assert shown["code"] == -32603
        assert "secret" not in str(shown)
        assert "secret" in caplog.text
        assert (await client.call("initialize", protocolVersion=1)).data["protocolVersion"] == 1


ASKED = {"_meta": {"warren": {"unstable": True}}}


def unstable_members() -> set[tuple[str, str]]:
    """Return the members that the schema of the official package marks as unstable, with their classes."""
    found, cls, member = set[tuple[str, str]](), "", ""
    for line in inspect.getsource(schema).splitlines():
        if begun := re.match(r"class (\w+)", line):
            cls, member = begun[1], ""
        elif named := re.match(r"    (\w+):", line):
            member = named[1]
        elif member and line.strip() == "**UNSTABLE**":
            found.add((cls, member))
    return found


async def test_unstable_members_go_to_clients_that_ask(tmp_path: Path) -> None:
    """A client that says nothing, or no more than its files, gets the protocol alone; one that asks gets all."""
    members = {("SessionCapabilities", "fork"), ("PromptResponse", "usage")}
    assert members <= unstable_members()
    for given, has in ({}, False), ({"fs": {}, "_meta": {"other": True}}, False), (ASKED, True):
        async with open_runtime(store=tmp_path) as service, connect(service) as client:
            told = (await client.call("initialize", protocolVersion=1, clientCapabilities=given)).data
            ended = await client.prompt(await client.new(), "hello")
        shown = {("SessionCapabilities", each) for each in told["agentCapabilities"]["sessionCapabilities"]}
        shown |= {("AgentCapabilities", each) for each in told["agentCapabilities"]}
        shown |= {("PromptResponse", each) for each in ended.data}
        assert shown & unstable_members() == (members if has else set())
