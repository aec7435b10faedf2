"""Models of others that a cloud sells: addresses and credentials by each one's documentation, on strict servers."""

from typing import Any, Final

import httpx
import pytest

from tests.transport.providers.calls import request
from warren import codec
from warren.errors import ProviderError
from warren.model import ModelReply
from warren.transport.providers import open_providers
from warren.transport.providers.checking import check_live, list_live
from warren.transport.providers.registry import default_model, known_models

AZURE: Final = {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/", "AZURE_OPENAI_API_KEY": "azure-not-a-key"}
RESPONSE: Final = {
    "id": "resp_1",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "yes"}]}],
    "usage": {"input_tokens": 7, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 4}},
}


async def call(server: Any, model: str, environ: dict[str, str], **options: object) -> ModelReply:
    """Call a model of a cloud whose servers are a function."""
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ, client=client) as providers,
    ):
        choice = providers.resolve(model, None)
        return await choice.provider.complete(request(choice.model, **options), lambda _piece: None)


async def test_azure() -> None:
    """The request goes to the v1 API of the resource, with the deployment as its model and the key in its header."""

    def azure(asked: httpx.Request) -> httpx.Response:
        assert str(asked.url) == "https://mine.openai.azure.com/openai/v1/responses"
        assert asked.headers["api-key"] == "azure-not-a-key"
        assert "authorization" not in asked.headers
        body = codec.parse(asked.content)
        assert (body["model"], body["store"], body["prompt_cache_key"]) == ("gpt-5-mini", False, "s1")
        assert body["include"] == ["reasoning.encrypted_content"]
        return httpx.Response(200, json=RESPONSE)

    reply = await call(azure, "azure:gpt-5-mini", AZURE, session_id="s1")
    assert reply.message.text == "yes"
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens) == (7, 4)


@pytest.mark.parametrize(
    ("code", "status", "cause", "said"),
    [
        ("DeploymentNotFound", 404, "not_found", "The deployment does not exist"),
        ("content_filter", 400, "content_filter", "The deployment does not exist"),
        ("401", 401, "unauthorized", "refused the key in AZURE_OPENAI_API_KEY"),
    ],
)
async def test_azure_refuses(code: str, status: int, cause: str, said: str) -> None:
    """A refusal of Azure has its cause, and no key."""
    refusal = {"error": {"code": code, "message": "The deployment does not exist (azure-not-a-key)"}}
    with pytest.raises(ProviderError) as failed:
        await call(lambda _: httpx.Response(status, json=refusal), "azure:gpt", AZURE)
    assert (failed.value.cause, failed.value.retryable) == (cause, False)
    assert said in failed.value.message
    assert "azure-not-a-key" not in failed.value.message


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "azure: AZURE_OPENAI_ENDPOINT is not set; Azure's portal shows it"),
        ({"AZURE_OPENAI_ENDPOINT": "mine"}, "azure: AZURE_OPENAI_ENDPOINT is not an http"),
        ({"AZURE_OPENAI_ENDPOINT": "https://a.example"}, "azure: AZURE_OPENAI_API_KEY is not set; Azure's portal"),
    ],
)
async def test_azure_without_settings(environ: dict[str, str], said: str) -> None:
    """A missing setting is named by the call, by the list of models, and by the doctor; nothing is sent."""

    def nobody(asked: httpx.Request) -> httpx.Response:
        raise AssertionError(asked.url)

    with pytest.raises(ProviderError, match=said):
        await call(nobody, "azure:gpt", environ)
    (known,) = [each for each in known_models(environ) if each.provider == "azure"]
    assert (known.pattern, known.usable) == ("azure:*", False)
    assert f"azure: {known.reason}".startswith(said)
    (checked,) = await check_live(environ, only="azure")
    assert (checked.message or "").startswith(said)


async def test_clouds_are_asked_only_if_they_are_set_up() -> None:
    """Without an address a cloud is not asked for its models, and with one alone it is no session's default."""
    assert await list_live({}) == ()
    assert default_model(AZURE) == "echo"
