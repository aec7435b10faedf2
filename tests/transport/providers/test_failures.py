"""The refusals of servers, and whether another try is worth it."""

from datetime import UTC, datetime

import httpx
import pytest

from tests.transport.providers.calls import CLAUDE, GPT, KEY, answered, over, request, streamed
from tests.transport.providers.dialects import delta, opened, start
from warren.base.errors import ProviderError
from warren.models.model import Emitted
from warren.transport.providers.failures import retry_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)
both = pytest.mark.parametrize("model", [GPT, CLAUDE])


async def failure(model: str, code: int, body: object, **headers: str) -> ProviderError:
    """Return the error of a call that the server answers so."""
    with pytest.raises(ProviderError) as caught:
        await answered(request(model), body, code, **{name.replace("_", "-"): value for name, value in headers.items()})
    return caught.value


@both
@pytest.mark.parametrize(
    ("code", "cause", "retryable"),
    [
        (400, "bad_request", False),
        (401, "unauthorized", False),
        (402, "quota", False),
        (403, "forbidden", False),
        (404, "not_found", False),
        (408, "timeout", True),
        (409, "conflict", True),
        (413, "too_large", False),
        (418, "bad_request", False),
        (422, "bad_request", False),
        (429, "rate_limited", True),
        (500, "server_error", True),
        (501, "bad_request", False),
        (502, "server_error", True),
        (503, "overloaded", True),
        (504, "timeout", True),
        (529, "overloaded", True),
        (302, "bad_response", False),
    ],
)
async def test_status(model: str, code: int, cause: str, retryable: bool) -> None:  # noqa: FBT001 - a column
    """Each status has its cause, and says truly whether to try again."""
    error = await failure(model, code, {"error": {"message": "because"}})
    assert (error.cause, error.retryable, error.retry_after) == (cause, retryable, None)
    assert error.details["status"] == code
    assert str(code) in error.message


@both
@pytest.mark.parametrize(
    ("code", "error", "cause", "retryable"),
    [
        (429, {"code": "insufficient_quota", "message": "no credit"}, "quota", False),
        (400, {"code": "billing_hard_limit_reached", "message": "no credit"}, "quota", False),
        (429, {"type": "billing_hard_limit_reached", "message": "no credit"}, "quota", False),
        (400, {"code": "context_length_exceeded", "message": "too long"}, "context_length", False),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "context_length", False),
        (
            400,
            {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
            "context_length",
            False,
        ),
        (400, {"type": "exceed_context_size_error", "code": 400, "message": "no"}, "context_length", False),
        (400, {"code": "tool_use_failed", "message": "Failed to call a function."}, "bad_response", True),
        (500, {"type": "overloaded_error", "message": "Overloaded"}, "overloaded", True),
    ],
)
async def test_status_made_precise(
    model: str,
    code: int,
    error: dict[str, object],
    cause: str,
    retryable: bool,  # noqa: FBT001 - a column
) -> None:
    """If the body says more than the status, it counts."""
    caught = await failure(model, code, {"type": "error", "error": error})
    assert (caught.cause, caught.retryable) == (cause, retryable)


@both
async def test_a_request_over_the_window_tells_its_numbers(model: str) -> None:
    """The window that a refusal names, and the server's count of the request, are in the details of the error."""
    message = "prompt is too long: 208310 tokens > 200000 maximum"
    error = await failure(model, 400, {"error": {"type": "invalid_request_error", "message": message}})
    assert (error.cause, error.details["window"], error.details["counted"]) == ("context_length", 200_000, 208_310)
    message = "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for x"
    error = await failure(model, 400, {"error": {"type": "invalid_request_error", "message": message}})
    assert (error.cause, error.details["max_output"]) == ("bad_request", 32_000)


@both
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "it is so"}},
        {"error": "it is so"},
        {"message": "it is so"},
        {"detail": "it is so"},
        {"type": "error", "error": {"type": "api_error", "message": "it is so"}},
    ],
)
async def test_message_of_the_server(model: str, body: object) -> None:
    """The server's own words are passed on, in whatever form it says them."""
    error = await failure(model, 500, body)
    assert error.message.endswith("answered 500: it is so")


@both
async def test_message_is_short_and_plain(model: str) -> None:
    """A page of HTML becomes one short line."""
    page = b"<html>\n\n" + b"<p>sorry</p>\n" * 1000
    with pytest.raises(ProviderError) as caught:
        await over(lambda _: httpx.Response(502, content=page), request(model))
    assert "firewall before it may have refused the request: sorry sorry" in caught.value.message
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message


@both
async def test_unauthorized_names_the_variable(model: str) -> None:
    """A refused key is an error that names its variable, and quotes neither the key nor the server."""
    variable = {GPT: "OPENAI_API_KEY", CLAUDE: "ANTHROPIC_API_KEY"}[model]
    error = await failure(model, 401, {"error": {"message": f"Incorrect API key provided: {KEY[:6]}***."}})
    assert variable in error.message
    assert KEY[:6] not in error.message
    assert not error.retryable


@both
async def test_key_is_never_quoted(model: str) -> None:
    """A server that repeats the key does not get it into the message."""
    error = await failure(model, 400, {"error": {"message": f"what is {KEY}?"}})
    assert "what is ***?" in error.message
    assert KEY not in repr(error.body())


@pytest.mark.parametrize(
    ("key", "said", "shown"),
    [
        ("x", "next context of x", "next context of x"),
        ("seven77", "what is seven77?", "what is seven77?"),
        ("password", "passwords, password. my-password password", "passwords, ***. my-password ***"),
        ("sk-a.b+c/d=", "Bearer sk-a.b+c/d=, 'sk-a.b+c/d='", "Bearer ***, '***'"),
    ],
)
async def test_only_whole_keys_are_masked(key: str, said: str, shown: str) -> None:
    """A key is hidden as a whole word, and not at all if it is too short to be one."""
    with pytest.raises(ProviderError) as caught:
        await over(
            lambda _: httpx.Response(400, json={"error": {"message": said}}),
            request(GPT),
            settings={"OPENAI_API_KEY": key},
        )
    assert caught.value.message.endswith(f"answered 400: {shown}")


@pytest.mark.parametrize("code", [404, 405])
@pytest.mark.parametrize(("base", "hinted"), [("", True), ("/api/", True), ("/v1", False), ("/v1/", False)])
async def test_an_address_without_the_version(base: str, code: int, *, hinted: bool) -> None:
    """A server that has nothing at the address is named with the path, and with what to try if /v1 is missing."""
    with pytest.raises(ProviderError) as caught:
        await over(
            lambda _: httpx.Response(code, text="Not Found"),
            request("llama"),
            settings={"OPENAI_BASE_URL": f"http://user:secret@127.0.0.1:9{base}"},
        )
    path = f"{base.rstrip('/')}/chat/completions"
    assert f"openai at 127.0.0.1:9 answered {code} for {path}: Not Found" in caught.value.message
    assert ("set OPENAI_BASE_URL to an address that ends with /v1" in caught.value.message) == hinted
    assert "secret" not in caught.value.message


async def test_a_page_in_place_of_the_protocol() -> None:
    """A server that answers with a page of its own is taken for one whose address lacks /v1."""
    with pytest.raises(ProviderError, match="ends with /v1") as caught:
        await over(
            lambda _: httpx.Response(200, html="<html>"),
            request("llama"),
            settings={"OPENAI_BASE_URL": "http://127.0.0.1:9"},
        )
    assert caught.value.cause == "bad_response"


@both
@pytest.mark.parametrize(("said", "retryable"), [("true", True), ("false", False), ("perhaps", False)])
async def test_should_retry(model: str, said: str, retryable: bool) -> None:  # noqa: FBT001 - a column
    """If the server itself says whether to try again, it is believed."""
    assert (await failure(model, 400, {}, x_should_retry=said)).retryable is retryable


@both
async def test_retry_after_is_passed_on(model: str) -> None:
    """The wait that a server asks for is in the error, in seconds."""
    assert (await failure(model, 429, {}, retry_after="7")).retry_after == 7.0
    assert (await failure(model, 529, {}, retry_after_ms="1500", retry_after="2")).retry_after == 1.5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    """Seconds and dates are understood; nonsense is no wish."""
    assert retry_after({"retry-after": value}, NOW) == seconds


@pytest.mark.parametrize(
    ("error", "cause", "retryable"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded", True),
        ({"type": "api_error", "message": "Internal"}, "server_error", True),
        ({"type": "rate_limit_error", "message": "slow down"}, "rate_limited", True),
        ({"type": "invalid_request_error", "message": "no"}, "bad_request", False),
        ({"type": "authentication_error", "message": "no"}, "unauthorized", False),
        ({"code": 502, "message": "upstream"}, "server_error", True),
        ({"code": 400, "message": "no"}, "bad_request", False),
        ({"code": "context_length_exceeded", "message": "no"}, "context_length", False),
        ({"message": "what"}, "server_error", True),
        ("what", "server_error", True),
    ],
)
async def test_error_in_the_stream(error: object, cause: str, retryable: bool) -> None:  # noqa: FBT001 - a column
    """An error event in the middle of a stream ends the call, with a cause of its own."""
    for model, before in ((GPT, [delta("Hel")]), (CLAUDE, [start(), opened(0, "text", text="Hel")])):
        with pytest.raises(ProviderError) as caught:
            await streamed(request(model), *before, {"type": "error", "error": error})
        assert (caught.value.cause, caught.value.retryable) == (cause, retryable)


@both
async def test_error_with_status_200(model: str) -> None:
    """A plain JSON error under status 200 is an error all the same."""
    error = await failure(model, 200, {"error": {"type": "overloaded_error", "message": "later"}})
    assert (error.cause, error.retryable) == ("overloaded", True)


@both
@pytest.mark.parametrize(
    ("kind", "content"),
    [("text/html", b"<html>welcome"), ("", b""), ("application/json", b"{"), ("application/json", b"[]")],
)
async def test_not_an_answer(model: str, kind: str, content: bytes) -> None:
    """A page, nothing, or broken JSON under status 200 is a bad response."""
    headers = {"content-type": kind} if kind else {}
    with pytest.raises(ProviderError) as caught:
        await over(lambda _: httpx.Response(200, headers=headers, content=content), request(model))
    assert caught.value.cause == "bad_response"


@both
async def test_broken_event(model: str) -> None:
    """An event that is not JSON is a bad response, as text may have been lost with it; nothing after it counts."""
    pieces: list[Emitted] = []
    late = delta("late") | opened(0, "text", text="late")
    with pytest.raises(ProviderError) as caught:
        await streamed(request(model), "{oops", late, pieces=pieces)
    assert pieces == []
    assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)


@both
@pytest.mark.parametrize("url", ["ftp://example.test", "nonsense", "http://", "http://[broken", "http://host:port/v1"])
async def test_bad_address(model: str, url: str) -> None:
    """An address that cannot be called is an error that names its variable."""
    variables = {"OPENAI_BASE_URL": url, "ANTHROPIC_BASE_URL": url}
    with pytest.raises(ProviderError, match="_BASE_URL is not an http") as caught:
        await over(lambda _: httpx.Response(500), request(model), settings=variables)
    assert not caught.value.retryable


@both
@pytest.mark.parametrize("key", ["", "  ", "sk-\N{BULLET}\N{BULLET}", "sk-\nx"])
async def test_unusable_key(model: str, key: str) -> None:
    """A missing or impossible key is an error that names its variable and not the key, before anything is sent."""
    variables = {"OPENAI_API_KEY": key, "ANTHROPIC_API_KEY": key}
    with pytest.raises(ProviderError, match=r"_API_KEY (is not set|holds characters)") as caught:
        await over(lambda _: pytest.fail("a request was sent"), request(model), settings=variables)
    assert (caught.value.cause, caught.value.retryable) == ("unauthorized", False)
    assert "sk-" not in caught.value.message


async def test_only_the_head_of_a_page_is_read() -> None:
    """The words of a proxy's page are at its head; a page of nothing but brackets holds up nobody."""
    for head, words in ((" " * 1000, True), ("<" * 60_000, False)):
        page = f"<html>{head}<title>Forbidden</title>".encode()
        with pytest.raises(ProviderError) as caught:
            await over(lambda _, page=page: httpx.Response(403, content=page), request(GPT))  # type: ignore[misc]
        assert ("Forbidden" in caught.value.message) == words
