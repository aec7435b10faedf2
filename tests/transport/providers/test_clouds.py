"""Models of others that a cloud sells: addresses and credentials by each one's documentation, on strict servers."""

import base64
import hashlib
import hmac
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, quote

import httpx
import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.transport.providers.calls import request
from tests.transport.providers.identity import serving_identity
from warren.base import extras
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.models.model import ModelReply
from warren.transport.providers import open_providers
from warren.transport.providers.checking import check_live, list_live
from warren.transport.providers.registry import default_model, known_models
from warren.transport.providers.remote import DIALECTS, HttpProvider
from warren.transport.providers.settings import AZURE as AZURE_VENDOR
from warren.transport.providers.settings import Bounds, endpoints

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
        (
            {"AZURE_OPENAI_ENDPOINT": "https://a.example"},
            f"azure: AZURE_OPENAI_API_KEY is not set{AZURE_VENDOR.where}; without a key it needs the extra `azure`",
        ),
    ],
)
async def test_azure_without_settings(environ: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing setting is named by the call, by the list of models, and by the doctor; nothing is sent."""
    monkeypatch.setattr(extras, "MODULES", {**extras.MODULES, "azure": ("no_such_module",)})

    def nobody(asked: httpx.Request) -> httpx.Response:
        raise AssertionError(asked.url)

    with pytest.raises(ProviderError, match=said):
        await call(nobody, "azure:gpt", environ)
    (known,) = [each for each in known_models(environ) if each.provider == "azure"]
    assert (known.pattern, known.usable) == ("azure:*", False)
    assert f"azure: {known.reason}".startswith(said)
    (checked,) = await check_live(environ, only="azure")
    assert (checked.message or "").startswith(said)


ENTRA: Final = {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com"}


async def test_azure_with_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key a token goes as a bearer; one that is about to expire is replaced, once for all calls."""
    sent: list[str] = []

    def azure(asked: httpx.Request) -> httpx.Response:
        assert "api-key" not in asked.headers
        sent.append(asked.headers["authorization"])
        return httpx.Response(200, json=RESPONSE)

    with serving_identity(("t1", 60), ("t2", 3600)) as identity:
        for name, value in identity.environ.items():
            monkeypatch.setenv(name, value)
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(azure)) as client,
            open_providers(ENTRA, client=client) as providers,
        ):
            provider = providers.resolve("azure:gpt", None).provider
            await provider.complete(request("gpt"), lambda _piece: None)
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(provider.complete, request("gpt"), lambda _piece: None)
            assert sent == ["Bearer t1", *["Bearer t2"] * 5]
            assert identity.given == 2

        await call(lambda _: httpx.Response(200, json=RESPONSE), "azure:gpt", ENTRA | AZURE)
        assert identity.given == 2


async def test_azure_gives_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to do, without a secret; a token that came once is asked for again after a failure."""
    refused = httpx.Response(401, json={"error": {"code": "PermissionDenied", "message": "Principal t1 has no access"}})
    with serving_identity(("t1", 60), None) as identity:
        for name, value in identity.environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ProviderError, match=r"refused the credentials \(401\); their identity needs the role"):
            await call(lambda _: refused, "azure:gpt", ENTRA)
        with pytest.raises(ProviderError, match=r"AZURE_OPENAI_API_KEY is not set, .* \(AADSTS700016\): run") as failed:
            await call(lambda _: refused, "azure:gpt", ENTRA)
        assert (failed.value.cause, failed.value.retryable) == ("unauthorized", False)
        assert identity.environ["IDENTITY_HEADER"] not in failed.value.message

        identity.answers = [("t1", 60)]
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=RESPONSE))) as client,
            open_providers(ENTRA, client=client) as providers,
        ):
            provider = providers.resolve("azure:gpt", None).provider
            await provider.complete(request("gpt"), lambda _piece: None)
            identity.answers = [None]
            with pytest.raises(ProviderError, match="give no token of Entra ID"):
                await provider.complete(request("gpt"), lambda _piece: None)
            identity.answers = [("t1", 60)]
            await provider.complete(request("gpt"), lambda _piece: None)
            identity.close()
            with pytest.raises(ProviderError, match="the server of Entra ID's tokens cannot be reached") as failed:
                await provider.complete(request("gpt"), lambda _piece: None)
            assert (failed.value.cause, failed.value.retryable) == ("connection", True)

    for name, value, said in (
        ("AZURE_TOKEN_CREDENTIALS", "nobody", "cannot be read: Invalid value for AZURE_TOKEN_CREDENTIALS: nobody"),
        ("AZURE_CLIENT_CERTIFICATE_PATH", str(tmp_path / "none.pem"), "cannot be read: .*none.pem"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
            patch.setenv("AZURE_TENANT_ID", "t")
            patch.setenv("AZURE_CLIENT_ID", "c")
            patch.setenv(name, value)
            with pytest.raises(ProviderError, match=said):
                await call(lambda _: refused, "azure:gpt", ENTRA)


async def test_clouds_are_asked_only_if_they_are_set_up() -> None:
    """Without an address a cloud is not asked for its models, and with one alone it is no session's default."""
    assert await list_live({}) == ()
    assert default_model(AZURE) == "echo"


MESSAGE: Final = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "yes"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1},
}
AUDIENCE: Final = "https://oauth2.googleapis.com/token"
VERTEX: Final = {"CLOUD_ML_REGION": "us-east5", "ANTHROPIC_VERTEX_PROJECT_ID": "p1"}


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Set the key of a service account, whose tokens a server of ours gives; return the claims that it has checked."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims: list[dict[str, Any]] = []

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
            claims.append(jwt.decode(form["assertion"][0], key.public_key(), ["RS256"], audience=AUDIENCE))
            # The second token is kept; the first one is too close to its end.
            answer = {
                "access_token": f"t{len(claims)}",
                "expires_in": [60, 3600][len(claims) - 1],
                "token_type": "Bearer",
            }
            body = codec.encode(answer)
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
            pass

    server = HTTPServer(("127.0.0.1", 0), Tokens)
    uri = f"http://127.0.0.1:{server.server_port}/token"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "w@p1.example", "private_key": pem, "token_uri": uri}
    (tmp_path / "key.json").write_bytes(codec.encode(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield claims
    server.shutdown()
    thread.join()
    server.server_close()


async def test_vertex(google: list[dict[str, Any]]) -> None:
    """The model is in the address and the version in the body; a token is kept until it is about to expire."""
    tokens: list[str] = []

    def vertex(asked: httpx.Request) -> httpx.Response:
        base = "https://us-east5-aiplatform.googleapis.com/v1/projects/p1/locations/us-east5"
        assert str(asked.url) == f"{base}/publishers/anthropic/models/claude-haiku-4-5@20251001:streamRawPredict"
        assert not {"x-api-key", "anthropic-version"} & set(asked.headers)
        body = codec.parse(asked.content)
        assert (body["anthropic_version"], body["stream"]) == ("vertex-2023-10-16", True)
        assert "model" not in body
        assert body["messages"][0]["content"][-1]["cache_control"] == {"type": "ephemeral"}
        tokens.append(asked.headers["authorization"])
        return httpx.Response(200, json=MESSAGE)

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(vertex)) as client,
        open_providers(VERTEX, client=client) as providers,
    ):
        choice = providers.resolve("vertex:claude-haiku-4-5@20251001", None)
        for _ in range(3):
            reply = await choice.provider.complete(request(choice.model), lambda _piece: None)
            assert (reply.message.text, reply.usage.cache_read_tokens) == ("yes", 4)
    assert tokens == ["Bearer t1", "Bearer t2", "Bearer t2"]
    assert [(claim["iss"], claim["scope"]) for claim in google] == [
        ("w@p1.example", "https://www.googleapis.com/auth/cloud-platform")
    ] * 2


async def test_vertex_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each missing setting is named, with the way to get it; nothing is sent."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    nothing = httpx.Response(500)
    for environ, said in (
        ({"CLOUD_ML_REGION": "eu"}, "vertex: ANTHROPIC_VERTEX_PROJECT_ID is not set; the project"),
        ({"GOOGLE_CLOUD_PROJECT": "p"}, "vertex: CLOUD_ML_REGION is not set; the project"),
        (VERTEX, "vertex: there are no default credentials of Google: run `gcloud auth"),
    ):
        with pytest.raises(ProviderError, match=said) as failed:
            await call(lambda _: nothing, "vertex:claude-x", environ)
        assert not failed.value.retryable
    monkeypatch.setattr(extras, "MODULES", {"vertex": ("no_such_module",)})
    with pytest.raises(ProviderError, match="vertex: it needs the extra `vertex`: pip install"):
        await call(lambda _: nothing, "vertex:claude-x", VERTEX)


@pytest.mark.parametrize(
    ("region", "host"),
    [("global", "aiplatform.googleapis.com"), ("eu", "aiplatform.eu.rep.googleapis.com")],
)
def test_vertex_regions(region: str, host: str) -> None:
    """Groups of regions have addresses of their own."""
    assert endpoints(VERTEX | {"CLOUD_ML_REGION": region})["vertex"].host == host


AWS: Final = {"AWS_REGION": "us-west-2"}
MODEL: Final = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
EVENTS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 3}},
)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide the credentials of the machine."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def frame(payload: bytes, **headers: str) -> bytes:
    """Return a frame, by AWS's description of the event stream encoding; all headers are texts (type 7)."""
    named = b"".join(
        struct.pack("!B", len(name) + 1)
        + f":{name}".replace("_", "-").encode()
        + struct.pack("!BH", 7, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(named) + len(payload), len(named))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    return (whole := prelude + named + payload) + struct.pack("!I", zlib.crc32(whole))


def chunk(event: dict[str, Any]) -> bytes:
    """Return the frame of an event, padded as Bedrock does."""
    payload = {"bytes": base64.b64encode(codec.encode(event)).decode(), "p": "abcdefg"}
    return frame(codec.encode(payload), event_type="chunk", message_type="event")


def framed(*frames: bytes) -> httpx.Response:
    """Return a stream of frames that is cut within them."""
    whole = b"".join(frames)

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 7):
            yield whole[at : at + 7]

    return httpx.Response(200, headers={"content-type": "application/vnd.amazon.eventstream"}, content=parts())


def signature(asked: httpx.Request, secret: str) -> str:
    """Return the signature of a request by AWS's description of Signature Version 4."""
    algorithm, rest = asked.headers["authorization"].split(" ", 1)
    fields = dict(each.split("=", 1) for each in rest.split(", "))
    _, *scope = fields["Credential"].split("/")
    assert scope[1:] == ["us-west-2", "bedrock", "aws4_request"]
    names = fields["SignedHeaders"].split(";")
    assert {"host", "x-amz-date"} <= set(names)
    assert names == sorted(names)
    lines = [asked.method, quote(asked.url.raw_path.decode(), safe="/-_.~"), ""]
    lines += [f"{name}:{asked.headers[name].strip()}" for name in names]
    lines += ["", ";".join(names), hashlib.sha256(asked.content).hexdigest()]
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = "\n".join([algorithm, asked.headers["x-amz-date"], "/".join(scope), canonical])
    key = f"AWS4{secret}".encode()
    for part in (*scope, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


async def test_bedrock(aws: pytest.MonkeyPatch) -> None:
    """A request is signed as AWS describes it, with the token of the session; the answer comes in frames."""
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    aws.setenv("AWS_SECRET_ACCESS_KEY", "not+a/secret")
    aws.setenv("AWS_SESSION_TOKEN", "session")

    async def bedrock(asked: httpx.Request) -> httpx.Response:
        await asked.aread()
        path = f"/model/{quote(MODEL, safe='')}/invoke-with-response-stream"
        assert asked.url.raw_path.decode() == path
        assert asked.url.host == "bedrock-runtime.us-west-2.amazonaws.com"
        body = codec.parse(asked.content)
        assert body["anthropic_version"] == "bedrock-2023-05-31"
        assert not {"model", "stream"} & set(body)
        assert asked.headers["x-amz-security-token"] == "session"
        assert asked.headers["authorization"].endswith(f"Signature={signature(asked, 'not+a/secret')}")
        return framed(*map(chunk, EVENTS))

    reply = await call(bedrock, f"bedrock:{MODEL}", AWS)
    assert (reply.message.text, reply.usage.cache_read_tokens, reply.usage.output_tokens) == ("yes", 4, 1)


@pytest.mark.parametrize(
    ("last", "cause", "retryable"),
    [
        (
            frame(b'{"message":"slow"}', exception_type="throttlingException", message_type="exception"),
            "rate_limited",
            True,
        ),
        (
            frame(b'{"message":"no"}', exception_type="validationException", message_type="exception"),
            "bad_request",
            False,
        ),
        (frame(b"", error_code="internal", error_message="oh", message_type="error"), "server_error", True),
        (frame(b"damaged")[:-1] + b"?", "server_error", True),
    ],
)
async def test_bedrock_breaks_off(last: bytes, cause: str, *, retryable: bool) -> None:
    """An exception within the stream has its cause; the key of Bedrock is a bearer token."""

    def bedrock(asked: httpx.Request) -> httpx.Response:
        assert asked.headers["authorization"] == "Bearer aws-not-a-key"
        return framed(*map(chunk, EVENTS[:3]), last)

    with pytest.raises(ProviderError) as failed:
        await call(bedrock, f"bedrock:{MODEL}", AWS | {"AWS_BEARER_TOKEN_BEDROCK": "aws-not-a-key"})
    assert (failed.value.cause, failed.value.retryable) == (cause, retryable)


async def test_bedrock_without_credentials(aws: pytest.MonkeyPatch) -> None:
    """Each missing setting is named, with the way to get it; nothing is sent."""
    nothing = httpx.Response(500)
    for environ, said in (
        ({}, "bedrock: AWS_REGION is not set; it is a region"),
        (AWS, "bedrock: there are no credentials of AWS: run `aws configure`"),
    ):
        with pytest.raises(ProviderError, match=said):
            await call(lambda _: nothing, f"bedrock:{MODEL}", environ)
    aws.setattr(extras, "MODULES", {"bedrock": ("no_such_module",)})
    with pytest.raises(ProviderError, match="bedrock: it needs the extra `bedrock`: pip install"):
        await call(lambda _: nothing, f"bedrock:{MODEL}", AWS)
    assert await list_live(AWS) == ()


@pytest.mark.virtual_time
async def test_credentials_that_do_not_come() -> None:
    """The source of a cloud's credentials that hangs fails the call, long before the bound on a silent answer."""

    class Hanging:
        """A source without an end."""

        async def headers(self, request: httpx.Request) -> dict[str, str]:
            """Wait for ever."""
            assert request.headers["host"] == "mine.openai.azure.com"
            await trio.sleep_forever()
            raise AssertionError

    endpoint = endpoints(AZURE)["azure"]
    provider = HttpProvider(endpoint, DIALECTS[endpoint.dialect], httpx.AsyncClient, Bounds(), authorizer=Hanging())
    began = trio.current_time()
    with pytest.raises(ProviderError, match="azure: there were no credentials within 60 s") as failed:
        await provider.complete(request("gpt-5-mini"), lambda _piece: None)
    assert (failed.value.cause, failed.value.retryable) == ("timeout", True)
    assert trio.current_time() - began == pytest.approx(60)
