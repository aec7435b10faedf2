"""Servers of models under names of their own: in the configuration file, and among the options of a command."""

from collections.abc import Iterable
from pathlib import Path

import attrs
import httpx
import pytest
from click.testing import CliRunner

from tests.transport.cli.parsing import parse
from tests.transport.providers.calls import request
from warren.base.errors import InvalidParamsError
from warren.settings.config import ModelServer
from warren.transport.cli.app import cli
from warren.transport.cli.settings.file import read_config
from warren.transport.providers import default_model, known_models, open_providers

LOCAL = ModelServer(name="local", base_url="http://127.0.0.1:8080/v1")
ROUTER = ModelServer(name="my-router", base_url="https://router.test/v1/")
PROXY = ModelServer(
    name="proxy", base_url="https://proxy.test", key_env="THE_KEY", dialect="anthropic", think_tags=False
)
KEYS = {"LOCAL_API_KEY": "a", "MY_ROUTER_API_KEY": "b", "THE_KEY": "c", "OPENAI_API_KEY": "d"}
FILE = """
[providers.local]
base_url = "http://127.0.0.1:8080/v1"

[providers.proxy]
base_url = "https://proxy.test"
key_env = "THE_KEY"
dialect = "anthropic"
think_tags = false
"""


async def called(
    model: str, provider: str | None, servers: Iterable[ModelServer] = (LOCAL, ROUTER, PROXY)
) -> tuple[str, str | None, str]:
    """Return the address of a call, its key, and the name of the model there."""
    got: list[httpx.Request] = []

    def server(asked: httpx.Request) -> httpx.Response:
        got.append(asked)
        return httpx.Response(200, json={"choices": [{}], "content": [], "output": [], "candidates": []})

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(KEYS, client=client, servers=servers) as providers,
    ):
        choice = providers.resolve(model, provider)
        await choice.provider.complete(request(choice.model), lambda _: None)
    headers = got[0].headers
    key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key")
    return str(got[0].url), key, choice.model


async def test_several_at_once() -> None:
    """Each server has its own address, key and protocol, beside those of the vendors."""
    assert await called("m", "local") == ("http://127.0.0.1:8080/v1/chat/completions", "a", "m")
    assert await called("local:m", None) == ("http://127.0.0.1:8080/v1/chat/completions", "a", "m")
    assert await called("claude-x", "my-router") == ("https://router.test/v1/chat/completions", "b", "claude-x")
    assert await called("m", "proxy") == ("https://proxy.test/v1/messages", "c", "m")
    assert await called("gpt-5", None) == ("https://api.openai.com/v1/responses", "d", "gpt-5")


async def test_in_place_of_a_vendor() -> None:
    """A server with the name of a vendor takes its models, key and protocol."""
    servers = [ModelServer(name="openai", base_url="http://127.0.0.1:9/v1")]
    assert await called("gpt-5", None, servers) == ("http://127.0.0.1:9/v1/chat/completions", "d", "gpt-5")
    assert await called("any", None, servers) == ("http://127.0.0.1:9/v1/chat/completions", "d", "any")
    servers = [ModelServer(name="openai", base_url="https://api.openai.com/v1", dialect="openai-chat")]
    assert await called("gpt-5", None, servers) == ("https://api.openai.com/v1/chat/completions", "d", "gpt-5")


def test_names() -> None:
    """The servers are among the known models, and a runtime with one of them has a default model there."""
    rows = {known.pattern: known for known in known_models({}, (LOCAL, PROXY))}
    assert (rows["local:*"].provider, rows["local:*"].usable) == ("local", True)
    assert default_model({"ANTHROPIC_API_KEY": "k"}, (LOCAL,), "local") == "default"
    assert default_model({"ANTHROPIC_API_KEY": "k"}, (), "gemini") == "gemini-3.8-flash"
    assert default_model({"GOOGLE_API_KEY": "k"}) == "gemini-3.8-flash"
    assert "127.0.0.1" not in repr(LOCAL)


def test_the_file(tmp_path: Path) -> None:
    """Each table is a server; a bad one is named by its path."""
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    assert read_config(path).model_servers == (LOCAL, PROXY)
    for bad, where in (
        ("[providers.x]\nkey_env = 'K'", "$.config.providers.x.base_url"),
        ("[providers.x]\nbase_url = ' '", "$.config.providers.x.base_url"),
        ("[providers.x]\nbase_url = 'http://a'\ndialect = 'latin'", "$.config.providers.x.dialect"),
        ("[providers.x]\nbase_url = 'http://a'\nkey = 'K'", "$.config.providers.x.key"),
    ):
        path.write_text(bad)
        with pytest.raises(InvalidParamsError) as caught:
            read_config(path)
        assert caught.value.path in (where, where.rpartition(".")[0])


def test_the_option(tmp_path: Path) -> None:
    """An address among the options is that of the named provider; without a provider it is refused."""
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    run = ("--base-url", "http://127.0.0.1:9/v1", "--config", str(path))
    moved = attrs.evolve(PROXY, base_url="http://127.0.0.1:9/v1")
    assert parse(*run, "--provider", "proxy").config.model_servers == (LOCAL, moved)
    added = ModelServer(name="other", base_url="http://127.0.0.1:9/v1")
    assert parse(*run, "--provider", "other").config.model_servers == (LOCAL, PROXY, added)
    with pytest.raises(InvalidParamsError) as caught:
        parse(*run)
    assert caught.value.path == "$.base_url"


def test_the_list_of_models(tmp_path: Path) -> None:
    """`warren models` has a line for each server of the file."""
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    done = CliRunner().invoke(cli, ["models", "--config", str(path)], env={"THE_KEY": "k"})
    rows = {line.split("\t")[0]: line.split("\t")[1] for line in done.output.splitlines() if "\t" in line}
    assert (rows["local:*"], rows["proxy:*"]) == ("local", "proxy")
