"""An ACP client in a test's hand: every message of the agent is checked against the schema of the official SDK."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import pydantic
import trio
from acp import schema
from trio.testing import lockstep_stream_one_way_pair, memory_stream_one_way_pair

from warren.actors.tools.session_tools import SessionTools
from warren.calls.facade import SessionService
from warren.conversation.options import CompactionConfig
from warren.transport.acp import AgentSettings, serve_acp

FOLDER: Final = "/the/agents/folder"
RESULTS: Final[Mapping[str, type[pydantic.BaseModel]]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/fork": schema.ForkSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/delete": schema.DeleteSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/prompt": schema.PromptResponse,
}


@attrs.frozen
class Reply:
    """The answer to a request, and the updates that were read while it was waited for.

    Attributes:
        data: `result` or the whole `error`.
        updates: each update with its session, in order.
    """

    data: Any
    updates: list[tuple[str, dict[str, Any]]]

    @property
    def stop_reason(self) -> str:
        """Why a prompt ended."""
        reason: str = self.data["stopReason"]
        return reason

    def kinds(self) -> list[str]:
        """Return what kinds of updates came, runs of one kind as one."""
        kinds = [update["sessionUpdate"] for _, update in self.updates]
        return [kind for index, kind in enumerate(kinds) if not index or kinds[index - 1] != kind]

    def only(self, kind: str) -> list[dict[str, Any]]:
        """Return the updates of one kind."""
        return [update for _, update in self.updates if update["sessionUpdate"] == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """Join the text of the chunks of one kind."""
        return "".join(update["content"]["text"] for update in self.only(kind))


@attrs.define(eq=False)
class Client:
    """One end of a pipe to an agent.

    Attributes:
        stream: the pipe.
        heard: messages read so far.
        asked: the agent's requests for permission so far.
        says: answers such a request at once, with a whole result; None where the test does it, or nobody.
    """

    stream: trio.StapledStream[Any, Any]
    heard: list[dict[str, Any]] = attrs.field(factory=list)
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    says: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    _buffer: bytes = b""
    _requests: dict[int, str] = attrs.field(factory=dict)
    _answers: dict[int, Any] = attrs.field(factory=dict)

    async def write(self, *messages: object) -> None:
        """Send messages in one piece; raw bytes are a line as it is."""
        lines = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages)
        await self.stream.send_all(b"".join(line + b"\n" for line in lines))

    def request(self, method: str, **params: object) -> dict[str, Any]:
        """Make a request, to be sent by `write`."""
        number = len(self._requests)
        self._requests[number] = method
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}

    async def read(self) -> dict[str, Any] | None:
        """Return the agent's next message, checked; None at the end."""
        message = await self.read_raw()
        if message is not None:
            self._check(message)
            if "method" in message and "id" in message:
                await self._asked(message)
        return message

    async def question(self) -> dict[str, Any]:
        """Read on up to the agent's next request; return it."""
        while message := await self.read():
            if "method" in message and "id" in message:
                return message
        raise AssertionError("nothing was asked")

    async def reply(self, question: Mapping[str, Any], **answer: object) -> None:
        """Answer a request of the agent's with a `result` or an `error`."""
        await self.write({"jsonrpc": "2.0", "id": question["id"], **answer})

    async def read_raw(self) -> dict[str, Any] | None:
        """Return the agent's next message, None at the end."""
        while b"\n" not in self._buffer:
            chunk = await self.stream.receive_some()
            if not chunk:
                assert self._buffer == b"", "half a line"
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        self.heard.append(message)
        return message

    async def answer_to(self, request: Mapping[str, Any]) -> Reply:
        """Read on up to the answer to a request, unless it has been read already."""
        updates = []
        while request["id"] not in self._answers:
            message = await self.read()
            assert message is not None, f"no answer to {request}"
            if "method" in message and "id" in message:
                continue
            if "method" in message:
                updates.append((message["params"]["sessionId"], message["params"]["update"]))
            else:
                self._answers[message["id"]] = message.get("result", message.get("error"))
        return Reply(self._answers.pop(request["id"]), updates)

    async def call(self, method: str, **params: object) -> Reply:
        """Send a request and wait for its answer."""
        request = self.request(method, **params)
        await self.write(request)
        return await self.answer_to(request)

    async def new(self, cwd: str = "/work") -> str:
        """Open a session; return its id once its commands are known."""
        reply = await self.call("session/new", cwd=cwd, mcpServers=[])
        update = await self.read()
        assert update is not None
        assert update["params"]["update"]["sessionUpdate"] == "available_commands_update"
        session_id: str = reply.data["sessionId"]
        return session_id

    async def prompt(self, session_id: str, text: str) -> Reply:
        """Say something and wait for the end of the turn."""
        return await self.call("session/prompt", sessionId=session_id, prompt=said(text))

    async def cancel(self, session_id: str) -> None:
        """Cancel what runs."""
        await self.write(cancel(session_id))

    async def _asked(self, question: dict[str, Any]) -> None:
        self.asked.append(question["params"])
        if self.says is not None:
            await self.reply(question, **self.says(question["params"]))

    def _check(self, message: Mapping[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" in message and "id" in message:
            assert message["method"] == "session/request_permission"
            schema.RequestPermissionRequest.model_validate(message["params"], strict=True)
        elif "method" in message:
            assert message["method"] == "session/update"
            schema.SessionNotification.model_validate(message["params"], strict=True)
        elif "error" in message:
            schema.Error.model_validate(message["error"], strict=True)
            assert message["error"]["data"]["code"]
        else:
            RESULTS[self._requests[message["id"]]].model_validate(message["result"])


def said(*texts: str) -> list[dict[str, str]]:
    """Make the blocks of a prompt."""
    return [{"type": "text", "text": text} for text in texts]


def chosen(option: str) -> dict[str, Any]:
    """Make the answer of a user who chose an option."""
    return {"result": {"outcome": {"outcome": "selected", "optionId": option}}}


def cancel(session_id: str) -> dict[str, Any]:
    """Make the notification that cancels."""
    return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}}


@asynccontextmanager
async def connect(
    service: SessionService,
    compaction: CompactionConfig | None = None,
    *,
    lockstep: bool = False,
    tools: SessionTools | None = None,
) -> AsyncIterator[Client]:
    """Run an agent in front of a service; at the end the client hangs up, and the agent has to end.

    In lockstep a line of the agent's leaves only as far as the client has read it.
    """
    to_agent, incoming = memory_stream_one_way_pair()
    outgoing, from_agent = lockstep_stream_one_way_pair() if lockstep else memory_stream_one_way_pair()
    serve = partial(serve_acp, service, AgentSettings(FOLDER, compaction, tools), (incoming, outgoing))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, serve, outgoing)
        async with trio.StapledStream(to_agent, from_agent) as stream:
            yield Client(stream)


async def _serve(serve: Callable[[], Awaitable[None]], outgoing: trio.abc.SendStream) -> None:
    async with outgoing:
        await serve()
