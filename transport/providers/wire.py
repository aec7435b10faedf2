"""Shared by the dialects: reading JSON of servers, and names and ids that every server accepts. No I/O."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.messages import ToolResult

CONTINUE: Final = "Continue."
"""A last message for contexts that end with an answer of the model: some models refuse to continue those."""
READ: Final = "I have read the results."
"""An answer between the results of tools and a prompt, for servers that want one there."""
FILES: Final = "[The files above are of the results of the tools.]"
"""The text beside the files of results, for protocols in which results are texts."""

# Matches a pair of surrogate escapes, a lone one, or any other escape; only a lone one is invalid.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_SHORT_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
_GOOD_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")


def parse(raw: bytes | str) -> Any:
    """Return the data of a JSON text. Raises ValueError if it is no JSON.

    Lone surrogates and bytes that are not UTF-8 are replaced by U+FFFD.
    """
    try:
        return codec.parse(raw)
    except ValueError:
        text = _as_str(raw)
        repaired = _ESCAPE.sub(lambda found: r"\ufffd" if found["lone"] else found[0], text)
        if repaired == raw:
            raise
        return codec.parse(repaired)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return a JSON object that a server sent. Raises ProviderError(cause="bad_response") for anything else."""
    try:
        data = parse(raw)
    except ValueError as exc:
        raise bad_response(f"invalid JSON: {exc}") from None
    if isinstance(data, list) and len(data) == 1:  # Google's errors in place of a stream
        data = data[0]
    if not isinstance(data, dict):
        raise bad_response("JSON that is not an object")
    return data


def parse_all(raw: bytes) -> list[dict[str, Any]]:
    """Return a JSON object that a server sent, or the objects of a list: Google's streams are lists at some proxies.

    Raises ProviderError(cause="bad_response") for anything else.
    """
    try:
        data = parse(raw)
    except ValueError:
        data = None
    if isinstance(data, list) and data and all(isinstance(each, dict) for each in data):
        return data
    return [parse_object(raw)]


def is_whole(event: bytes) -> bool:
    """Return whether the last event of a stream, which may be cut, is whole."""
    try:
        parse(event)
    except ValueError:
        return event.strip() == b"[DONE]"
    return True


def with_halves(raw: bytes, parsed: dict[str, Any]) -> dict[str, Any]:
    """Return the object that was parsed from `raw`, with its lone surrogates instead of U+FFFD.

    A server may cut a character in two: the second half comes with the next chunk, see `warren.models.model.joined`.
    """
    if raw.find(b"\\") >= 0 and raw.find(b"\\u") >= 0:  # the first is quick in an event with a picture
        text = _as_str(raw)
        if any(found["lone"] for found in _ESCAPE.finditer(text)):
            return json.loads(text)  # type: ignore[no-any-return]
    return parsed


def mended(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON data from `with_halves` with U+FFFD in place of lone surrogates, which a store cannot hold."""
    return parse(json.dumps(data))  # type: ignore[no-any-return]


def _as_str(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")


def bad_response(problem: str) -> ProviderError:
    """Return the error for an answer that does not follow the protocol."""
    return ProviderError(f"the server sent {problem}", cause="bad_response", retryable=True)


def object_in(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object; an empty one if it is null or missing. Raises ProviderError."""
    value = parent.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad_response(f"a `{name}` that is not an object")
    return value or {}


def objects_in(parent: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a member that is a list of objects; an empty one if it is null or missing. Raises ProviderError."""
    value = parent.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise bad_response(f"a `{name}` that is not a list of objects")
    return value or []


def text_in(parent: Mapping[str, Any], name: str) -> str:
    """Return a member that is a text or a list of parts; empty if it is null or missing. Raises ProviderError."""
    value = parent.get(name)
    if value is not None and not isinstance(value, str | list):
        raise bad_response(f"a `{name}` that is not a text")
    return as_text(value)


def arguments_in(parent: Mapping[str, Any], name: str) -> str:
    """Return the JSON of a call's arguments; some servers send the object itself. Raises ProviderError."""
    value = parent.get(name)
    return codec.encode(value).decode() if isinstance(value, dict) else text_in(parent, name)


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a text, also one given as a list of parts; empty in place of anything else."""
    if isinstance(value, str):
        return value
    return "".join(as_text(as_object(part).get("text")) for part in as_list(value))


def as_count(value: object) -> int | None:
    """Return a number of tokens, or None in place of anything else."""
    return value if type(value) is int and value >= 0 else None


def call_id(own: str) -> str:
    """Return a tool call's id in a form that every provider takes; the same for a call and its result."""
    return own if _GOOD_ID.fullmatch(own) else f"call_{hashlib.sha256(own.encode()).hexdigest()[:32]}"


def short_id(own: str) -> str:
    """Return a tool call's id in nine letters and digits."""
    return own if _SHORT_ID.fullmatch(own) else hashlib.sha256(own.encode()).hexdigest()[:9]


def content_of(result: ToolResult) -> str:
    """Return the text of a tool's result; a sentence in place of none, which servers refuse and models misread."""
    if result.content and not result.content.isspace():
        return result.content
    if result.is_error:
        return "the tool failed, and does not say why"
    return "(files without a text)" if result.attachments else "(no output)"


def result_text(result: ToolResult) -> str:
    """Return the result of a tool for protocols that have no flag for errors: their text begins with "Error"."""
    content = content_of(result)
    told = not result.is_error or content.lower().startswith("error")
    return content if told else f"Error: {content}"
