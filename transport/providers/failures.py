"""A server's refusals as ProviderErrors: the cause, and whether a retry can succeed. No I/O."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final

from warren.base.errors import ProviderCause, ProviderError
from warren.base.values import frozen
from warren.models.model import joined
from warren.transport.providers import excess, wire
from warren.transport.providers.settings import ModelEndpoint

LONGEST_QUOTE: Final = 300
LONGEST_PAGE: Final = 100
"""Characters of a page for people that an error quotes."""
LONGEST_HEAD: Final = 4096
"""Characters of a page in which its words are looked for: the patterns take the square of its length."""
NOTHING_THERE: Final = (404, 405)
SHORTEST_KEY: Final = 8
"""Shorter texts are no secrets, and replacing each of their occurrences in a message would reveal them."""
SERVER_FAULTS: Final = range(500, 600)
REQUEST_FAULTS: Final = range(400, 500)
MAYBE_TOO_LONG: Final = (None, 400, 413, 422, 500)
"""Statuses with which servers refuse a request that is too long, if the message says so; None inside a stream."""
OVERSIZE: Final[Sequence[ProviderCause]] = ("context_length", "too_large")
_OF_PROXIES: Final = (400, 403, 406, 411, 412, 413, 414, 415, 431, 451, 502, 503, 504)
"""Statuses of proxies and firewalls; the servers of models send them with an error in JSON."""
_MESSAGES: Final = ("message", "msg", "detail", "error", "errors", "error_message", "title", "description")
"""The members of an error that have its words, the best first."""
_HTTP: Final = re.compile(r"[45]\d\d", re.ASCII)
_TAG: Final = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_RATE: Final = re.compile(r"rate.?limit|too many requests", re.IGNORECASE)
# OpenAI says "Please try again in 1m20.5s", Google "Please retry in 34.07s".
_TRY_AGAIN: Final = re.compile(
    r"(?:try again|retry) (?:in|after) (?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?) ?(ms|s))?", re.IGNORECASE
)
_SAYS: Final = ("message", "msg", "detail", "errors", "error_message", "error_msg")
"""Members that have the words of an error which an object is by itself."""


@frozen
class Said:
    """The words of a server that has refused a request.

    Attributes:
        status: the HTTP status; None for an error within a stream.
        kinds: its codes and types.
        param: the part of the request that it names; empty if it names none.
        text: its message, from wherever the body has it.
    """

    status: int | None
    kinds: tuple[str, ...]
    param: str
    text: str


class RefusalError(ProviderError):
    """A refusal with the words of the server; see `repair`.

    Attributes:
        said: the words; None if nothing may be tried, as a part of the answer was shown already.
    """

    said: Said | None = None


@frozen
class Refusal:
    """The cause of a refusal, and whether the same request may succeed later."""

    cause: ProviderCause
    retryable: bool


_STATUS: Final = {
    400: Refusal("bad_request", retryable=False),
    401: Refusal("unauthorized", retryable=False),
    402: Refusal("quota", retryable=False),
    403: Refusal("forbidden", retryable=False),
    404: Refusal("not_found", retryable=False),
    408: Refusal("timeout", retryable=True),
    409: Refusal("conflict", retryable=True),
    413: Refusal("too_large", retryable=False),
    425: Refusal("rate_limited", retryable=True),
    429: Refusal("rate_limited", retryable=True),
    501: Refusal("bad_request", retryable=False),
    503: Refusal("overloaded", retryable=True),
    504: Refusal("timeout", retryable=True),
    529: Refusal("overloaded", retryable=True),
}
# Error types and codes that are more precise than the HTTP status beside them.
_PRECISE: Final = {
    "content_filter": Refusal("content_filter", retryable=False),
    "insufficient_quota": Refusal("quota", retryable=False),
    "billing_hard_limit_reached": Refusal("quota", retryable=False),
    "billing_error": Refusal("quota", retryable=False),
    "context_length_exceeded": Refusal("context_length", retryable=False),
    "exceed_context_size_error": Refusal("context_length", retryable=False),
    "overloaded_error": _STATUS[529],
    # Groq's codes for an answer that the model got wrong, under status 400
    "tool_use_failed": Refusal("bad_response", retryable=True),
    "json_validate_failed": Refusal("bad_response", retryable=True),
    "output_parse_failed": Refusal("bad_response", retryable=True),
    "API_KEY_INVALID": Refusal("unauthorized", retryable=False),
}
# The other types and codes: an error inside a stream has no HTTP status.
_KINDS: Final = {
    "api_error": Refusal("server_error", retryable=True),
    "server_error": Refusal("server_error", retryable=True),
    "rate_limit_error": _STATUS[429],
    "rate_limit_exceeded": _STATUS[429],
    "timeout_error": _STATUS[408],
    "authentication_error": _STATUS[401],
    "invalid_api_key": _STATUS[401],
    "permission_error": _STATUS[403],
    "not_found_error": _STATUS[404],
    "model_not_found": _STATUS[404],
    "request_too_large": _STATUS[413],
    "invalid_request_error": _STATUS[400],
    "invalid_prompt": Refusal("content_filter", retryable=False),
    "bio_policy": Refusal("content_filter", retryable=False),
    "misalignment_policy_violation": Refusal("content_filter", retryable=False),
    "image_content_policy_violation": Refusal("content_filter", retryable=False),
    "vector_store_timeout": _STATUS[504],
    "RESOURCE_EXHAUSTED": _STATUS[429],
    "UNAVAILABLE": _STATUS[503],
    "DEADLINE_EXCEEDED": _STATUS[504],
}
# The codes of MiniMax that say more than "try again", by its page on error codes, November 2026.
_OF_MINIMAX: Final = {
    "1001": "timeout_error",
    "1002": "rate_limit_error",
    "1004": "authentication_error",
    "1008": "insufficient_quota",
    "1026": "content_filter",
    "1027": "content_filter",
    "1039": "rate_limit_error",
    "1041": "rate_limit_error",
    "1042": "invalid_request_error",
    "2013": "invalid_request_error",
    "2045": "rate_limit_error",
    "2049": "authentication_error",
    "2056": "insufficient_quota",
}
# The codes of the responses protocol for files that the model cannot read, and those that are named alike.
_INPUT: Final = re.compile(r"(invalid|unsupported)_\w+|(\w+_)?image(_\w+)?")


def refused(endpoint: ModelEndpoint, status: int, headers: Mapping[str, str], body: str, path: str) -> ProviderError:
    """Return the error for an HTTP status other than 200; `path` is the path of the request."""
    error, foreign = _error_of(body), _is_foreign(status, body)
    verdict = _judge(status, error)
    retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", ""), verdict.retryable)
    page = foreign and _is_page(headers, body)
    said = Said(status, (), "", "") if page else _said(status, error)
    refusal = RefusalError(
        _of_proxy(endpoint, status, body) if page else _refusal(endpoint, status, said.text, path, verdict),
        cause=verdict.cause,
        retryable=retryable,
        retry_after=retry_after(headers, datetime.now(UTC)) or _retry_delay(error),
        details={"provider": endpoint.vendor.name, "status": status, **_numbers(error, verdict)}
        | ({"answered_by": "proxy"} if foreign else {}),
    )
    refusal.said = said
    return refusal


def check(endpoint: ModelEndpoint, data: Mapping[str, Any]) -> None:
    """Raise the error that an event or a body with status 200 reports; call it for those that are nothing else."""
    minimax = wire.as_object(data.get("base_resp"))
    if (code := str(minimax.get("status_code") or 0)) != "0":
        raise in_stream(endpoint, {"code": _OF_MINIMAX.get(code, code), "message": minimax.get("status_msg")})
    says = data.get("code") != 0 and any(map(data.get, _SAYS))  # the message of code 0 is "Success"
    alone = data.get("object") == "error" or data.get("type") == "error" or says
    if alone or data.get("error"):
        raise in_stream(endpoint, data)


def in_stream(endpoint: ModelEndpoint, error: object) -> ProviderError:
    """Return the error that a server reports inside a stream, or in the body of an answer with status 200."""
    data: dict[str, Any] = error if isinstance(error, dict) else {"error": wire.as_text(error)}
    while inner := wire.as_object(data.get("error")):  # an event named `error` may have the form of one, too
        data = inner
    data = {"message": wire.as_text(data.get("error"))} | data
    verdict = _judge(None, data)
    text = f"{endpoint.vendor.name} broke off: {_quote(endpoint, _message_of(data)) or verdict.cause}"
    details = {"provider": endpoint.vendor.name, **_numbers(data, verdict)}
    wait = _retry_delay(data)
    if wait is None:
        wait = _told_delay(data)
    error = RefusalError(text, cause=verdict.cause, retryable=verdict.retryable, retry_after=wait, details=details)
    error.said = _said(None, data)
    return error


def no_answer(endpoint: ModelEndpoint, kind: str, body: bytes) -> ProviderError:
    """Return the error for a body with status 200 that is neither a stream nor JSON, such as the words of a proxy."""
    text = body[: 4 * LONGEST_QUOTE].decode(errors="replace")
    words = _quote(endpoint, _TAG.sub(" ", text))
    problem = f"answered with {kind or 'an unknown type'}, not with JSON{hint(endpoint)}" + (
        f": {words}" if words else ""
    )
    cause: ProviderCause = "rate_limited" if _RATE.search(text) else "bad_response"
    details = {"provider": endpoint.vendor.name}
    return ProviderError(
        f"{endpoint.vendor.name} at {endpoint.host} {problem}", cause=cause, retryable=True, details=details
    )


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the wait in seconds that the headers ask for: `retry-after-ms`, or `retry-after` as seconds or a date."""
    if (milliseconds := number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    if (seconds := number(value)) is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _retry_delay(error: Mapping[str, Any]) -> float | None:
    """Return the wait in seconds that Google's errors ask for within their details."""
    texts = (wire.as_text(wire.as_object(each).get("retryDelay")) for each in wire.as_list(error.get("details")))
    return next((number(text.removesuffix("s")) for text in texts if text), None)


def _told_delay(error: Mapping[str, Any]) -> float | None:
    """Return the wait in seconds that an error without headers has as a number, or in its words."""
    if (seconds := number(str(error.get("retry_after")))) is not None:
        return seconds
    found = _TRY_AGAIN.search(_message_of(error))
    if found is None or not (found[1] or found[2]):
        return None
    return int(found[1] or 0) * 60 + float(found[2] or 0) / (1000 if found[3] == "ms" else 1)


def number(text: str) -> float | None:
    """Return a number from 0 on; None if a text is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _error_of(body: str) -> dict[str, Any]:
    """Return the error object of a body; its place differs from server to server."""
    try:
        data = wire.parse(body)
    except ValueError:
        data = None
    if isinstance(data, list):  # Google's protocol over chat sends one in a list
        data = next(filter(wire.as_object, data), None) if len(data) == 1 else {"detail": data}
    if not isinstance(data, dict) or not data:
        return {"message": body}
    error = data.get("error")
    return error if isinstance(error, dict) else data


def _message_of(error: Mapping[str, Any]) -> str:
    return _words_of(error) or wire.as_text(error.get("type"))


def _words_of(value: object, deep: int = 6) -> str:
    """Return the words of an error, of whatever form: a text, a list of errors, an object, or JSON within a text."""
    if isinstance(value, str):
        if value.lstrip()[:1] in ("{", "[") and deep:
            with suppress(ValueError):
                return _words_of(wire.parse(value), deep - 1) or value
        return value
    if isinstance(value, list):
        return "; ".join(filter(None, [_words_of(each, deep - 1) for each in value if deep]))
    if not isinstance(value, dict) or not deep:
        return ""
    words = [_words_of(value.get(name), deep - 1) for name in _MESSAGES]
    raw = _words_of(wire.as_object(value.get("metadata")).get("raw"), deep - 1)  # of the server behind OpenRouter
    text = ": ".join(dict.fromkeys(filter(None, [next(filter(None, words), ""), raw])))
    return f"{place}: {text}" if text and (place := _place_of(value)) else text


def _place_of(error: Mapping[str, Any]) -> str:
    """Return the part of a request that is at fault, as FastAPI names it: `loc` or `field`."""
    return ".".join(str(each) for each in wire.as_list(error.get("loc"))) or wire.as_text(error.get("field"))


def _param_of(value: object, deep: int = 6) -> str:
    """Return the part of the request that an error names by itself."""
    if isinstance(value, list):
        return next(filter(None, [_param_of(each, deep - 1) for each in value if deep]), "")
    if not isinstance(value, dict) or not deep:
        return ""
    inside = (_param_of(value.get(name), deep - 1) for name in _MESSAGES)
    return wire.as_text(value.get("param")) or _place_of(value).removeprefix("body.") or next(filter(None, inside), "")


def _said(status: int | None, error: Mapping[str, Any]) -> Said:
    kinds = (error.get("code"), error.get("type"), error.get("status"))
    return Said(status, tuple(filter(None, map(wire.as_text, kinds))), _param_of(error), _message_of(error))


def _is_foreign(status: int, body: str) -> bool:
    """Return whether no server of models may have refused the request: its errors are JSON."""
    return status in _OF_PROXIES and body.lstrip()[:1] not in ("{", "[")


def _is_page(headers: Mapping[str, str], body: str) -> bool:
    """Return whether a body is a page for people, or nothing at all."""
    return body.lstrip()[:1] in ("", "<") or "html" in headers.get("content-type", "").lower()


def _of_proxy(endpoint: ModelEndpoint, status: int, body: str) -> str:
    body = body[:LONGEST_HEAD]
    title = re.search(r"<title[^>]*>(.*?)</title>", body, re.IGNORECASE | re.DOTALL)
    words = _quote(endpoint, re.sub(r"<[^>]*>", " ", title[1] if title else body))[:LONGEST_PAGE]
    problem = f"{endpoint.vendor.name} at {endpoint.host} answered {status} without an error of its protocol"
    return f"{problem}, so a proxy or a firewall before it may have refused the request{f': {words}' if words else ''}"


def _numbers(error: Mapping[str, Any], verdict: Refusal) -> dict[str, int]:
    """Return the numbers of tokens that a refusal for good tells."""
    if verdict.retryable:
        return {}
    return excess.numbers(_message_of(error), error, too_long=verdict.cause in OVERSIZE)


def _judge(status: int | None, error: Mapping[str, Any]) -> Refusal:
    reasons = (wire.as_object(each).get("reason") for each in wire.as_list(error.get("details")))
    kinds = (*reasons, error.get("code"), error.get("type"), error.get("status"))
    known = [kind for kind in kinds if isinstance(kind, str)]
    if precise := _first(_PRECISE, known):
        return precise
    message = _message_of(error)
    if (status in MAYBE_TOO_LONG and excess.is_too_long(message)) or excess.never_fits(message):
        return _PRECISE["context_length_exceeded"]
    if status is not None:
        return _by_status(status)
    if verdict := _first(_KINDS, known) or (_STATUS[400] if any(map(_INPUT.fullmatch, known)) else None):
        return verdict
    if code := next((int(str(kind)) for kind in kinds if _HTTP.fullmatch(str(kind))), None):
        return _by_status(code)
    return _STATUS[429] if _RATE.search(_message_of(error)) else _KINDS["server_error"]


def _first(table: Mapping[str, Refusal], kinds: Sequence[str]) -> Refusal | None:
    return next((table[kind] for kind in kinds if kind in table), None)


def _by_status(status: int) -> Refusal:
    if status in _STATUS:
        return _STATUS[status]
    if status in SERVER_FAULTS:
        return _KINDS["server_error"]
    return _STATUS[400] if status in REQUEST_FAULTS else Refusal("bad_response", retryable=False)


def hint(endpoint: ModelEndpoint) -> str:
    """Return advice for the user if a server has nothing at the called address; empty if there is none."""
    vendor = endpoint.vendor
    if not vendor.dialect.startswith("openai") or endpoint.official or endpoint.url.endswith("/v1"):
        return ""
    return f"; most servers have the protocol below /v1: set {vendor.url_variable} to an address that ends with /v1"


def _refusal(endpoint: ModelEndpoint, status: int, message: str, path: str, verdict: Refusal) -> str:
    vendor = endpoint.vendor
    if verdict.cause == "unauthorized":  # servers quote parts of the key here: their message is not passed on
        if vendor.cloud is not None and not endpoint.key:
            role = "; their identity needs the role Cognitive Services OpenAI User" if vendor.cloud == "azure" else ""
            return f"{vendor.name} at {endpoint.host} refused the credentials ({status}){role}"
        problem = "refused the key in" if endpoint.key else "wants a key; set"
        return f"{vendor.name} at {endpoint.host} {problem} {vendor.key_variable} ({status})"
    quote = _quote(endpoint, message)
    nothing_there = status in NOTHING_THERE
    place = f" for {path}" if nothing_there else ""
    quoted = f": {quote}" if quote else ""
    return f"{vendor.name} at {endpoint.host} answered {status}{place}{quoted}{hint(endpoint) if nothing_there else ''}"


def _quote(endpoint: ModelEndpoint, text: str) -> str:
    """Return a server's message, shortened, without the key."""
    clean, key = joined([text]), endpoint.key or ""
    if len(key) >= SHORTEST_KEY:
        clean = re.sub(rf"(?<![\w-]){re.escape(key)}(?![\w-])", "***", clean)
    return " ".join(clean.split())[:LONGEST_QUOTE]
