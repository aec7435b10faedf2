"""Reads the parameters of a request from its path, query and body. They are plain data; the method checks them."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, Final, get_args, get_type_hints

import attrs
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request

from warren.base.errors import InvalidParamsError
from warren.calls.base import MAX_OFFSET
from warren.conversation import codec
from warren.transport.access.refusals import JSON, RefusedError
from warren.transport.rest.forms import Form

DIGITS: Final = 20
"""Digits of a number in a query. A longer one stays a text, which the check of the parameters refuses."""
KEY: Final = "idempotency_key"
KEY_HEADER: Final = "Idempotency-Key"
_OF_BODIES: Final = (b"content-length", b"transfer-encoding")
NESTED: Final = "]["
"""Between the names of an object within an object, which no parameter has; a label with this in its name is refused."""
BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False}


@cache
def _types(params: type) -> Mapping[str, Any]:
    """Return the types of a class's fields."""
    return get_type_hints(params)


def announces_body(request: Request) -> bool:
    """Return whether the head of a request announces a body, which may be empty."""
    return any(name in _OF_BODIES for name, _ in request.scope["headers"])


async def whole_body(request: Request) -> bytes:
    """Return a body. Raises RefusedError if the client leaves before its end."""
    try:
        return await request.body()
    except ClientDisconnect as exc:
        raise RefusedError(400, "the body is not whole", field="$.body") from exc


async def read_form(request: Request, form: Form, take: Callable[[int], None]) -> None:
    """Have a form read the body of a request, as it comes; `take` counts its bytes. Raises RefusedError, as `take`."""
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                take(len(piece))
                form.feed(piece)
    except ClientDisconnect as exc:
        raise RefusedError(400, "the body is not whole", field="$.body") from exc


async def from_body(request: Request) -> dict[str, Any]:
    """Return the object in a body; an empty body is an empty object.

    Raises:
        RefusedError: if the body is not JSON.
        InvalidParamsError: if it is JSON, and no object.
    """
    raw = await whole_body(request)
    if not raw:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise RefusedError(415, f"the body must be {JSON}", field="$.headers.content-type")
    try:
        data = codec.parse(raw)
    except ValueError as exc:
        raise RefusedError(400, f"$: not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise InvalidParamsError.at("$", "must be an object")
    return data


def with_whole_numbers(params: type, data: Any) -> Any:
    """Return an object in which 5.0 is 5 if the class of parameters has an integer there: JSON has no two kinds."""
    if not isinstance(data, dict):
        return data
    types = _types(params)
    return {name: _whole(types.get(name), value) for name, value in data.items()}


def _whole(hint: Any, value: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    if type(value) is float and value.is_integer() and int in kinds and abs(value) <= MAX_OFFSET:
        return int(value)
    inner = next((kind for kind in kinds if attrs.has(kind)), None)
    return value if inner is None else with_whole_numbers(inner, value)


def from_query(params: type, query: QueryParams) -> dict[str, Any]:
    """Return the parameters in a query, each as the type that its field has, if the text is of that type.

    An object is written `labels[team]=red`. Raises InvalidParamsError if a parameter is there twice, has no name or has
    an object within.
    """
    data: dict[str, Any] = {}
    types = _types(params)
    for key, text in query.multi_items():
        name, bracket, inner = key.partition("[")
        if inner == "]" or NESTED in inner:
            raise InvalidParamsError.at(f"$.{name}", f"write {name}[NAME]=VALUE")
        if bracket and inner.endswith("]"):
            within, key_within = data.setdefault(name, {}), inner[:-1]
        else:
            within, key_within = data, key
        if not isinstance(within, dict) or key_within in within:
            raise InvalidParamsError.at(f"$.{key}", "is there twice")
        within[key_within] = _value(types.get(key), text)
    return data


def with_path(data: dict[str, Any], path: Mapping[str, Any]) -> dict[str, Any]:
    """Add the parameters in the path. Raises InvalidParamsError if the body has another value."""
    for name, value in path.items():
        if data.get(name, value) != value:
            raise InvalidParamsError.at(f"$.{name}", "is not that of the path")
    return {**data, **path}


def with_key(params: type, data: dict[str, Any], headers: Headers) -> dict[str, Any]:
    """Add the key in the header `Idempotency-Key`, if the method takes one. Raises InvalidParamsError for two keys."""
    in_headers = headers.getlist(KEY_HEADER) if KEY in _types(params) else ()
    keys = {*in_headers, *([data[KEY]] if isinstance(data.get(KEY), str) else ())}
    if len(keys) > 1:
        raise InvalidParamsError.at(f"$.{KEY}", "is there twice, and not the same")
    return {**data, KEY: in_headers[0]} if in_headers and data.get(KEY) is None else data


def _value(hint: Any, text: str) -> object:
    """Return a text as a number or truth value, or unchanged: then the check of the parameters refuses it."""
    wanted = get_args(hint) or (hint,)
    if int in wanted and len(text) <= DIGITS and text.removeprefix("-").isdigit() and text.isascii():
        return int(text)
    return BOOLEANS.get(text, text) if bool in wanted else text
