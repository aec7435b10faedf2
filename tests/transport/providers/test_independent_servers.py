"""Conversations over every protocol with servers of other makers, which are installed from a registry."""

import json
import shutil
import socket
import subprocess
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.runtime import new_session
from tests.support.waiting import wait_until
from warren.base.errors import AgentError, ProviderError
from warren.conversation.attachments import File
from warren.models.tools import tool
from warren.settings.config import Config, Dialect, ModelServer, RetryPolicy
from warren.transport.embed import open_supervisor

AIMOCK: Final = "@copilotkit/aimock@1.43.0"
LITELLM: Final = "litellm[proxy]==1.106.2"
KEY: Final = "sk-0123456789abcdef0123456789abcdef"
"""A key of nobody, of a length that LiteLLM takes."""
PNG: Final = bytes.fromhex("89504e470d0a1a0a") + bytes(32)
FIXTURES: Final[list[dict[str, Any]]] = [
    {
        "match": {"userMessage": "weather", "hasToolResult": False},
        "response": {
            "toolCalls": [
                {"name": "weather", "arguments": {"city": "Rome"}},
                {"name": "weather", "arguments": {"city": "Oslo"}},
            ]
        },
    },
    {
        "match": {"userMessage": "weather", "hasToolResult": True},
        "response": {"content": "Sun in both."},
    },
    {"match": {"userMessage": "JSON"}, "response": {"content": '{"sky": "blue"}'}},
    {"match": {"userMessage": "data"}, "response": {"content": "It is blue."}},
    {"match": {"userMessage": "picture"}, "response": {"content": "A picture, and words: é 🐇."}},
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello again. " * 40, "reasoning": "hm"}},
    # The last one: some protocols merge the prompt that was refused with the next one.
    {
        "match": {"userMessage": "wait"},
        "response": {"error": {"message": "Rate limited", "type": "rate_limit_error"}, "status": 429},
    },
]


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sun in {city}"


def a_port() -> int:
    """Return a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Callable[[int], list[str]], folder: Path, path: str) -> Iterator[str]:
    """Run a server on a port of its own until the end of the block; yield its address."""
    port = a_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command(port), cwd=folder, stdout=log, stderr=log)
        try:

            def answers() -> bool:
                assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
                try:
                    return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).status_code < 500
                except httpx.TransportError:
                    return False

            wait_until(answers, 120)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def installed(command: list[str]) -> None:
    """Install a server; skip the test if it cannot be had."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    if ended.returncode != 0:
        pytest.skip(f"the server cannot be had: {ended.stderr[-300:]}")


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run aimock, strictly: it fails for requests that no fixture matches."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("aimock")
    installed([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AIMOCK])
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": FIXTURES}))
    cli = folder / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    options = ("--strict", "--validate-on-load", "-f", str(folder / "fixtures.json"))
    with running(lambda port: [node, str(cli), "-p", str(port), *options], folder, "/health") as url:
        yield url


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the proxy of LiteLLM; its models answer without a vendor."""
    folder = tmp_path_factory.mktemp("litellm")
    venv.create(folder / "venv", with_pip=True)
    installed([str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", LITELLM])
    answers = {"model": "openai/gpt-4o", "api_key": "none", "mock_response": "Hello again."}
    models = [{"model_name": name, "litellm_params": answers} for name in ("gpt-5-mini", "claude-sonnet-5")]
    (folder / "config.yaml").write_text(json.dumps({"general_settings": {"master_key": KEY}, "model_list": models}))
    program = str(folder / "venv" / "bin" / "litellm")
    options = ("--config", str(folder / "config.yaml"), "--host", "127.0.0.1")
    with running(lambda port: [program, *options, "--port", str(port)], folder, "/health/liveliness") as url:
        yield url


def settings(url: str) -> Mapping[str, Any]:
    """Return the settings of a runtime whose models are all on one server."""
    places: Mapping[str, tuple[str, Dialect]] = {
        "chat": ("/v1", "openai-chat"),
        "responses": ("/v1", "openai-responses"),
        "messages": ("", "anthropic"),
        "google": ("/v1beta", "gemini"),
    }
    servers = tuple(
        ModelServer(name=name, base_url=f"{url}{path}", key_env="KEY", dialect=dialect)
        for name, (path, dialect) in places.items()
    )
    return {"model_servers": servers, "retry": RetryPolicy(max_attempts=1)}


ENVIRON: Final = {"KEY": KEY, "NO_PROXY": "127.0.0.1"}
PROTOCOLS: Final = {
    "chat": "gpt-5-mini",
    "responses": "gpt-5-mini",
    "messages": "claude-sonnet-5",
    "google": "gemini-3.8-flash",
}


@pytest.mark.soak
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("provider", PROTOCOLS)
async def test_aimock(aimock: str, provider: str) -> None:
    """Words, parallel tools, an image, an answer as data and a refusal; the session goes on through all of them."""
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    config = Config(model=PROTOCOLS[provider], provider=provider, **settings(aimock))
    async with open_supervisor(config, tools=[weather], environ=ENVIRON) as service:
        session = await new_session(service)
        assert (await service.start_turn(session, "hello")).text == "Hello again. " * 40
        result = await service.start_turn(session, "the weather?")
        assert (result.text, result.tool_calls) == ("Sun in both.", 2)
        with pytest.raises((ProviderError, AgentError)) as refused:
            await service.start_turn(session, "wait")
        assert refused.value.cause == "rate_limited"
        seen = await service.start_turn(session, "a picture", attachments=[File(PNG, name="a.png")])
        assert seen.text == "A picture, and words: é 🐇."
        found = await service.start_turn(session, "data", output_schema=schema)
        assert (found.text, found.structured_output) == ("It is blue.", {"sky": "blue"})
        assert (await service.start_turn(session, "hello")).usage.input_tokens > 0


@pytest.mark.soak
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("provider", ["chat", "messages"])
async def test_litellm(litellm: str, provider: str) -> None:
    """Words, in a session that goes on. Its models without a vendor have no answer in the protocol of responses."""
    config = Config(model=PROTOCOLS[provider], provider=provider, **settings(litellm))
    async with open_supervisor(config, environ=ENVIRON) as service:
        session = await new_session(service)
        for prompt in ("hello", "and again"):
            result = await service.start_turn(session, prompt)
            assert result.text == "Hello again."
        assert result.usage.output_tokens > 0
