"""Sessions whose server begins to refuse old parts of them: none is stuck, no call is forgotten, none runs twice."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faulty_store import Faults, FaultyStore
from tests.support.runtime import Recorder
from tests.transport.providers.calls import environ, servers
from warren.actors import runtime
from warren.base.errors import ProviderError
from warren.calls.facade import SessionService
from warren.conversation.attachments import File
from warren.conversation.events import RequestRepaired
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy, StoreConfig
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder
from warren.transport.providers import open_providers

MODELS: Final = {
    "chat": "gpt-5-mini",
    "anthropic": "claude-sonnet-5",
    "openai": "gpt-5-mini",
    "gemini": "gemini-3.8-flash",
}
MEMBER: Final = {
    "chat": "stream_options",
    "anthropic": "cache_control",
    "openai": "include",
    "gemini": "maxOutputTokens",
}
SIGNATURE_WORDS: Final = {
    "chat": "",
    "anthropic": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "openai": "The encrypted content for item rs_1 could not be verified.",
    "gemini": "Corrupted thought signature.",
}
WAYS: Final = ("signatures", "images", "member", "odd", "size", "order", "prompt", "proxy")
PROMPTS: Final = ("plain", "use", "image")


def _error(message: str, status: int = 400) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "invalid_request_error"}})


@attrs.define
class Server:
    """A server of all four protocols, which refuses more and more.

    Attributes:
        protocol: the provider's name.
        refuses: what it refuses from now on.
        stale: the signatures that it no longer knows.
        broken: refusals without a reason that follow, each once.
        ran: the results of the tool so far, each of which every request has to have.
    """

    protocol: str
    refuses: set[str] = attrs.field(factory=set)
    stale: set[str] = attrs.field(factory=set)
    broken: list[httpx.Response] = attrs.field(factory=list)
    ran: list[int] = attrs.field(factory=list)
    made: int = 0

    def __call__(self, sent: httpx.Request) -> httpx.Response:
        text, body = sent.content.decode(), json.loads(sent.content)
        if self.broken:
            return self.broken.pop()
        if (refusal := self._refusal(text, body)) is not None:
            return refusal
        assert all(f"saw {number}." in text for number in self.ran)
        self.made += 1
        return httpx.Response(200, json=self._answer(calls=text.rfind("please use") > text.rfind("saw ")))

    def _refusal(self, text: str, body: dict[str, Any]) -> httpx.Response | None:  # noqa: PLR0911 - one for each kind
        if any(f'"{signature}"' in text for signature in self.stale):
            return _error(SIGNATURE_WORDS[self.protocol])
        if "images" in self.refuses and '"https://example.test/' in text:
            return _error("Error while downloading the image. Upstream status code: 404")
        if "size" in self.refuses and '"https://example.test/' in text:
            return _error("Request exceeds the maximum size", 413)
        if "member" in self.refuses and f'"{MEMBER[self.protocol]}"' in text:
            return httpx.Response(
                422,
                json={"detail": [{"loc": ["body", MEMBER[self.protocol]], "msg": "Extra inputs are not permitted"}]},
            )
        if "odd" in self.refuses and '"odd"' in json.dumps(body.get("tools")):
            return _error("Invalid schema for function 'odd': it is odd")
        roles = [each["role"] for each in body.get("messages", ())] if self.protocol == "chat" else []
        if "order" in self.refuses and any(pair == ("tool", "user") for pair in pairwise(roles)):
            return _error("Unexpected role 'user' after role 'tool'")
        return None

    def _answer(self, *, calls: bool) -> dict[str, Any]:
        name = f"S{self.made}"
        args = {"number": self.made}
        match self.protocol:
            case "chat":
                call = {"id": f"c{self.made}", "function": {"name": "look", "arguments": json.dumps(args)}}
                message = {"content": None, "tool_calls": [call]} if calls else {"content": "fine"}
                return {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}
            case "anthropic":
                thought = {"type": "thinking", "thinking": "hm", "signature": name}
                use = {"type": "tool_use", "id": f"c{self.made}", "name": "look", "input": args}
                said = use if calls else {"type": "text", "text": "fine"}
                return {"content": [thought, said], "stop_reason": "tool_use" if calls else "end_turn"}
            case "openai":
                item: dict[str, Any] = {
                    "type": "reasoning",
                    "id": f"rs_{self.made}",
                    "summary": [],
                    "encrypted_content": name,
                }
                call = {
                    "type": "function_call",
                    "call_id": f"c{self.made}",
                    "name": "look",
                    "arguments": json.dumps(args),
                }
                text: dict[str, Any] = {"type": "message", "content": [{"type": "output_text", "text": "fine"}]}
                return {"status": "completed", "output": [item, call if calls else text]}
            case _:
                part = {"functionCall": {"name": "look", "args": args}} if calls else {"text": "fine"}
                content = {"parts": [{**part, "thoughtSignature": name}]}
                return {"candidates": [{"content": content, "finishReason": "STOP"}]}

    def begin(self, way: str) -> None:
        """Refuse one more kind of part, or the next request once."""
        match way:
            case "signatures":
                self.stale |= {f"S{number}" for number in range(self.made)} if self.protocol != "chat" else set()
            case "prompt":
                self.broken.append(_error("the moon is wrong"))
            case "proxy":
                self.broken.append(httpx.Response(403, content=b"<html>Forbidden</html>"))
            case _:
                self.refuses.add(way)


def odd() -> str:
    """Be odd."""
    return "odd"


def _tools(server: Server) -> Iterator[Any]:
    async def look(number: int) -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        assert number not in server.ran
        server.ran.append(number)
        return f"saw {number}."

    yield tool(look)
    yield tool(odd)


@asynccontextmanager
async def _serving(server: Server, store: Path | None = None) -> AsyncIterator[SessionService]:
    """Run sessions of a server, in memory or in a folder."""
    config = Config(model=MODELS[server.protocol], provider=server.protocol, retry=RetryPolicy(max_attempts=1))
    opener = None
    if store is not None:
        where = StoreConfig(store, synchronous="NORMAL")
        opener = partial(FaultyStore.prepared, where, Faults(), inline_runner, Holder.of(where))
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
        runtime.open_runtime(config, providers, list(_tools(server)), open_store=opener) as opened,
    ):
        yield opened.service


Turn = tuple[tuple[str, ...], str]


async def _run(provider: str, turns: list[Turn]) -> None:
    server = Server(provider)
    async with _serving(server) as service:
        session = (await service.create_session(None)).session_id
        for ways, prompt in turns:
            for way in ways:
                server.begin(way)
            files = (
                [File(url=f"https://example.test/{server.made}.png", media_type="image/png")]
                if prompt == "image"
                else []
            )
            seen = Recorder()
            failing = {"prompt", "proxy"}.intersection(ways)  # unless it helps to leave out what nobody has answered
            with suppress(ProviderError) if failing else nullcontext():
                result = await service.start_turn(session, f"please {prompt}", attachments=files, on_event=seen)
                assert result.text == "fine"
            server.broken.clear()
        server.broken.clear()
        assert (await service.start_turn(session, "a plain prompt")).text == "fine"


@pytest.mark.parametrize("provider", MODELS)
@given(
    turns=st.lists(
        st.tuples(st.lists(st.sampled_from(WAYS), max_size=2).map(tuple), st.sampled_from(PROMPTS)), max_size=7
    )
)
def test_no_session_is_ever_stuck(provider: str, turns: list[Turn]) -> None:
    """The next plain prompt gets an answer, every request has the results of all calls, and none runs twice."""
    trio.run(_run, provider, turns)


async def test_the_history_marks_messages_without_a_part(tmp_path: Path) -> None:
    """Each message of which a part is not sent any more has a mark, also after a restart, and in a fork."""
    server = Server("anthropic")
    async with _serving(server, tmp_path) as service:
        image = File(url="https://example.test/0.png", media_type="image/png")
        session = (await service.create_session("please image", attachments=[image])).session_id
        await service.start_turn(session, "please use")
        server.begin("signatures")
        server.begin("images")
        seen = Recorder()
        await service.start_turn(session, "and now?", on_event=seen)
        assert sorted(event.what for event in seen.only(RequestRepaired)) == [
            "image https://example.test/0.png, by a note",
            "the reasoning of earlier answers",
        ]
    async with _serving(server, tmp_path) as service:
        fork = (await service.fork(session)).state.session_id
        for each in (session, fork):
            marks = [entry.part_left_out for entry in (await service.history(each)).messages]
            answer, nothing = "reasoning", None
            assert marks == ["files", answer, nothing, answer, nothing, answer, nothing, nothing]
        assert (await service.start_turn(session, "after the restart")).text == "fine"
