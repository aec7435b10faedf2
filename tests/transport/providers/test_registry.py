"""Which provider answers for a model, and what is shared between them."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.transport.providers.calls import KEY, environ, request
from warren.base.errors import InvalidParamsError
from warren.models.catalog import ModelEntry
from warren.models.model import ModelRequest
from warren.settings.config import Config
from warren.transport.providers import EchoProvider, default_model, known_models, open_providers
from warren.transport.providers.registry import ModelRegistry, scripts_of
from warren.transport.providers.remote import HttpProvider

LOCAL = "http://127.0.0.1:9/v1"


async def provider_of(model: str, provider: str | None = None, **variables: str) -> str:
    """Return the name of the provider that a model resolves to."""
    async with open_providers(variables) as providers:
        found = providers.resolve(model, provider).provider
    return found.endpoint.vendor.name if isinstance(found, HttpProvider) else type(found).__name__


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-sonnet-5", "anthropic"),
        ("gpt-5-mini", "openai"),
        ("chatgpt-4o-latest", "openai"),
        ("o1", "openai"),
        ("o3-mini", "openai"),
        ("o4-mini-2025", "openai"),
        ("echo", "EchoProvider"),
    ],
)
async def test_name_picks_the_provider(model: str, name: str) -> None:
    """The model's name says who answers, with or without a key."""
    assert await provider_of(model) == name


async def test_provider_overrides_the_name() -> None:
    """A provider that is named outweighs the model's name."""
    assert await provider_of("claude-sonnet-5", "openai") == "openai"
    assert await provider_of("llama", "anthropic") == "anthropic"
    assert await provider_of("gpt-5", "echo") == "EchoProvider"


@pytest.mark.parametrize("model", ["llama3:8b", "o1ive", "ollama", "echoes", "gemma", "claude"])
async def test_other_names(model: str) -> None:
    """Any other name is a model of the server at OPENAI_BASE_URL, and unknown without one."""
    assert await provider_of(model, OPENAI_BASE_URL=LOCAL) == "openai"
    for variables in ({}, {"OPENAI_BASE_URL": " "}, {"OPENAI_BASE_URL": "https://api.openai.com/v1/"}):
        with pytest.raises(InvalidParamsError, match=model) as caught:
            await provider_of(model, **variables)
        assert caught.value.path == "$.model"


@pytest.mark.parametrize(
    ("model", "provider", "path"), [("", None, "$.model"), (" ", "echo", "$.model"), ("x", "y", "$.provider")]
)
async def test_unknown(model: str, provider: str | None, path: str) -> None:
    """A blank model and an unknown provider are refused with the path of the field."""
    with pytest.raises(InvalidParamsError) as caught:
        await provider_of(model, provider)
    assert caught.value.path == path
    assert caught.value.message.startswith(f"{path}: ")


async def test_own_providers() -> None:
    """A program's own provider is found by its name, as a provider, as a model and as a prefix, and before ours."""
    mine, openai = EchoProvider(), EchoProvider()
    async with open_providers({}, extra={"mine": mine, "openai": openai}) as providers:
        for model, provider, known_as in (
            ("mine", None, "mine"),
            ("mine:fast", None, "fast"),
            ("gpt-9", "mine", "gpt-9"),
        ):
            choice = providers.resolve(model, provider)
            assert choice.provider is mine
            assert choice.model == known_as
        assert providers.resolve("gpt-9", None).provider is openai
        with pytest.raises(InvalidParamsError, match="mine"):
            providers.resolve("gpt-9", "theirs")


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({}, "echo"),
        ({"OPENAI_API_KEY": " ", "ANTHROPIC_API_KEY": ""}, "echo"),
        ({"ANTHROPIC_API_KEY": "k"}, "claude-sonnet-5"),
        ({"OPENAI_API_KEY": "k"}, "gpt-5-mini"),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "claude-sonnet-5"),
        ({"OPENAI_BASE_URL": LOCAL}, "default"),
        ({"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "k"}, "default"),
        ({"ANTHROPIC_BASE_URL": LOCAL}, "claude-sonnet-5"),
    ],
)
async def test_default_model(variables: dict[str, str], model: str) -> None:
    """A session that names no model gets one of the provider whose key is set, echo without any; it always resolves."""
    assert default_model(variables) == model
    assert await provider_of(model, **variables)


def test_known_models() -> None:
    """The list says what can be used now and what is missing, and shows no key."""
    listed = {
        model.pattern: (model.provider, model.usable, model.reason) for model in known_models({"OPENAI_API_KEY": KEY})
    }
    assert listed["echo"] == ("echo", True, None)
    assert listed["scripted:FILE"] == ("scripted", True, None)
    assert listed["claude-*"] == ("anthropic", False, "ANTHROPIC_API_KEY is not set")
    assert [usable for provider, usable, _ in listed.values() if provider == "openai"] == [True]
    assert "*" not in listed
    assert "*" in {model.pattern for model in known_models({"OPENAI_BASE_URL": LOCAL})}
    assert KEY not in repr(known_models({"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": f"{KEY}\N{BULLET}"}))


def test_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment given, the process's own counts."""
    for name in environ(LOCAL):
        monkeypatch.delenv(name, raising=False)
    assert default_model() == "echo"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert default_model() == "claude-sonnet-5"
    assert {model.pattern for model in known_models() if model.usable} == {"echo", "scripted:FILE", "claude-*"}


async def test_keys_are_in_no_repr() -> None:
    """Neither the providers nor what they resolve show a key or an address with a password."""
    async with open_providers(environ(f"http://user:{KEY}@127.0.0.1:9")) as providers:
        assert isinstance(providers, ModelRegistry)
        choices = [providers.resolve(model, None) for model in ("gpt-5", "claude-sonnet-5")]
        assert KEY not in repr(choices)
        assert KEY not in repr(providers)


async def test_client_is_closed() -> None:
    """The shared client ends with the context, and what was resolved before cannot be called after it."""
    async with open_providers(environ(LOCAL)) as providers:
        choice = providers.resolve("gpt-5", None)
        assert isinstance(choice.provider, HttpProvider)
        client = choice.provider.connect()
        assert choice.provider.connect() is client
    assert client.is_closed
    with pytest.raises(RuntimeError, match="open_providers"):
        await choice.provider.complete(request("gpt-5"), lambda _: None)


async def test_given_client_is_left_open() -> None:
    """A client that the program brings is used and stays open."""
    async with httpx.AsyncClient() as client:
        async with open_providers(environ(LOCAL), client=client) as providers:
            choice = providers.resolve("gpt-5", None)
            assert isinstance(choice.provider, HttpProvider)
            assert choice.provider.connect() is client
        assert not client.is_closed


OFFLINE = """
import sys, trio
from warren.conversation.messages import UserMessage
from warren.models.model import ModelRequest
from warren.transport.providers import default_model, known_models, open_providers

async def main():
    async with open_providers({}) as providers:
        choice = providers.resolve(default_model({}), None)
        reply = await choice.provider.complete(ModelRequest(choice.model, [UserMessage("hello")]), lambda piece: None)
        print(reply.message.text, len(known_models({})), "httpx" in sys.modules)

trio.run(main)
"""


def test_offline_sessions_load_no_http() -> None:
    """A session on an offline model never imports httpx."""
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hello", "8", "False"]


async def test_request_is_decoded_once() -> None:
    """A lazy transcript is read once for a call over HTTP."""
    reads = 0

    class Lazy(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            nonlocal reads
            reads += 1
            return super().__iter__()

    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"output": []}))
    async with httpx.AsyncClient(transport=transport) as client, open_providers(environ(), client=client) as providers:
        choice = providers.resolve("gpt-5", None)
        await choice.provider.complete(ModelRequest("gpt-5", Lazy(request("gpt-5").messages)), lambda _: None)  # type: ignore[arg-type]
    assert reads == 1


async def test_only_the_scripts_of_the_settings_may_be_named_if_clients_come_over_a_network(tmp_path: Path) -> None:
    """Any other file is refused in the words for an unknown model, whether it exists, and whatever it has."""
    named, listed, other = (tmp_path / name for name in ("named.json", "listed.json", "other.json"))
    for file in (named, listed, other):
        file.write_text('{"steps": [{"text": "one"}]}')
    config = Config(model=f"scripted:{named}", models={f"scripted:{listed}": ModelEntry()}, any_script=False)
    async with open_providers({}, scripts=scripts_of(config)) as providers:
        for file in (named, listed):
            providers.resolve(f"scripted:{file}", None)
            providers.resolve(str(file), "scripted")
        for file in (other, tmp_path / "absent", tmp_path, tmp_path / "." / ".." / tmp_path.name / "other.json"):
            for model, provider in ((f"scripted:{file}", None), (str(file), "scripted")):
                with pytest.raises(InvalidParamsError) as caught:
                    providers.resolve(model, provider)
                said = caught.value.message
                assert said.replace(f"scripted:{file}", "llama") == await unknown("llama")
    assert scripts_of(Config(any_script=False, model="x.json", provider="scripted")) == {"x.json"}
    assert scripts_of(Config()) is None


async def unknown(model: str) -> str:
    """Return the refusal of a model that nobody knows."""
    with pytest.raises(InvalidParamsError) as caught:
        await provider_of(model)
    return caught.value.message
