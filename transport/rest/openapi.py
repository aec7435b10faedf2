"""The OpenAPI document, made from the tables of routes, methods and errors."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_args

from warren.base.version import VERSION
from warren.calls.base import Capability
from warren.calls.facade import Capabilities
from warren.calls.reading import SubscribeRequest, WatchRequest
from warren.conversation.events import Envelope
from warren.conversation.triggers import Delivered
from warren.conversation.views import SessionChanges
from warren.transport.access.refusals import JSON
from warren.transport.rest.events import MEDIA_TYPE
from warren.transport.rest.forms import FILES, FORM, PARAMS
from warren.transport.rest.parameters import KEY, KEY_HEADER, NESTED
from warren.transport.rest.routes import ROUTES, TRIGGER_PATH, WITH_BODY, RestRoute
from warren.transport.rpc.schemas import Schemas, error_schema

OPENAPI: Final = "3.1.0"
COMPONENTS: Final = "#/components/schemas/"
SENT: Final = "Sent."
ERROR: Final = "Error"
NEEDS: Final[Mapping[str, Capability]] = {"after_seq": "session-store", "compaction": "session-compaction"}
"""Parameters that need a capability; without a store only events of live sessions can be sent again."""
ANY_FILE: Final = "application/octet-stream"
FIELDS: Final = re.compile(r"\{(\w+)\}")
EVENT_ID: Final = "^[0-9]{0,18}$"
EVENT_TEXT: Final = "The id of the last event that the client has; it wins over `after_seq` unless it is empty."
ENVELOPE_TEXT: Final = "An `Envelope` as JSON; of the event `end` the session's id."
CHANGES_TEXT: Final = "The `SessionChanges` as JSON; the event is `changes`, and has no id."
FORM_TEXT: Final = f"It can be `{FORM}`: `{PARAMS}` is this object as JSON, each other part a file of the prompt."
KEY_TEXT: Final = f"It can be the header `{KEY_HEADER}` instead."
SIGNED_TEXT: Final = "Its headers are those of the scheme of the trigger: Standard Webhooks, GitHub or GitLab."
SIGNED: Final = (400, 403, 404, 408, 413, 415, 422, 429, 500, 503)
"""The statuses of failed calls that are signed."""
STATUSES: Final[Mapping[int, str]] = {
    400: "The body is not JSON, or is where none belongs.",
    401: "The server has a token, and this is not it.",
    403: "The page, or the host's name, is not on the list of the server.",
    404: "There is no such session, or nothing of the name in the path.",
    408: "The body did not come in time.",
    409: "The session is busy, is archived, has nothing to interrupt or to shorten, or was interrupted; what waited "
    "was withdrawn; the answer does not fit its schema; or a parameter is well written and does not fit what is there "
    "(a key or a name that is taken, a position beyond the end, a model, provider or tool that this server does not "
    "have, an option that the model does not take): `details.path` names it.",
    413: "The body, or a file in it, is too long.",
    415: "The body is said to be something else than JSON, or than a form where files belong, or to be compressed.",
    416: "The file has nothing in the range.",
    422: "A parameter is wrong: `details.path` names it.",
    429: "A budget is used up, or a limit of the tenant or the token is reached; `Retry-After` says when to ask again, "
    "if waiting helps.",
    500: "The store refused, the turn ended without an answer, or the outcome is unknown: only a request with a key "
    "may be sent again, and only if `retryable` says so.",
    501: "The capability that this needs is off.",
    502: "The model provider failed; `Retry-After` has its wish, where it stated one.",
    503: "As many turns run, or connections are open, as may; the body came slowly and others needed its place; the "
    "server shuts down; or the store is locked, full or away, or another process has the session. Nothing was stored "
    "or begun; `Retry-After` says when to ask again.",
}
"""The meaning of each status of an error; its code is in the body."""


def document(capabilities: Capabilities) -> Mapping[str, Any]:
    """Return the document; routes of a capability that is off are left out, and answer 501 or 405."""
    return _document(missing(capabilities))


def missing(capabilities: Capabilities) -> frozenset[str]:
    """Return the names of the capabilities that are off."""
    return frozenset(name for name in get_args(Capability) if not getattr(capabilities, name.replace("-", "_")))


@cache
def _document(off: frozenset[str]) -> Mapping[str, Any]:
    sent = Schemas(COMPONENTS + SENT, strict=True)
    got = Schemas(COMPONENTS, strict=False)
    paths: dict[str, dict[str, Any]] = {}
    for row in (row for row in ROUTES if row.method.capability not in off):
        paths.setdefault(row.path, {})[row.verb.lower()] = _operation(row, sent, got, off)
    paths[TRIGGER_PATH]["post"] = _signed_call(got)
    named = {SENT + name: schema for name, schema in sent.definitions.items()}
    return {
        "openapi": OPENAPI,
        "info": {"title": "Warren", "version": VERSION, "license": {"name": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": {**got.definitions, **named, ERROR: error_schema()},
            "responses": {str(status): _failure(text) for status, text in STATUSES.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(row: RestRoute, sent: Schemas, got: Schemas, off: frozenset[str]) -> dict[str, Any]:
    good = {"description": row.method.doc, "content": _content(row, got)}
    if row.status == 201:  # noqa: PLR2004 - Created
        good["headers"] = {"Location": {"description": "Where the session is.", "schema": {"type": "string"}}}
    failures: dict[str, Any] = {str(status): {"$ref": f"#/components/responses/{status}"} for status in STATUSES}
    if row.failed is not None:
        failures[str(row.failed)] = _failed(row, got)
    operation = {
        "operationId": row.operation or row.method.name.replace("/", "_"),
        "summary": row.method.doc,
        "responses": {str(row.status): good, **failures},
    }
    return operation | _wanted(row, sent, off)


def _content(row: RestRoute, got: Schemas) -> dict[str, Any]:
    """Return the content of a good answer.

    A stream is a text to clients that wait for its end, and events to those that take one after the other.
    """
    if row.content:
        file = {"schema": {"type": "string", "format": "binary"}}
        return {ANY_FILE: file, "*/*": file}  # code generators know no wildcard
    if not row.streams:
        return {JSON: {"schema": got.of(row.method.result)}}
    got.of(SessionChanges if row.method.params is WatchRequest else Envelope)
    text = {"type": "string"}
    said = CHANGES_TEXT if row.method.params is WatchRequest else ENVELOPE_TEXT
    data = {**text, "description": said}
    event = {"type": "object", "properties": {"data": data, "event": text, "id": text}, "required": ["data"]}
    return {MEDIA_TYPE: {"schema": {"anyOf": [text, event]}}}


def _wanted(row: RestRoute, sent: Schemas, off: frozenset[str]) -> dict[str, Any]:
    """Return the parameters of a request: of its path, then of its query or its body."""
    schema = sent.of_class(row.method.params)
    fields, required = dict(schema["properties"]), set(schema.get("required", ()))
    for name in (name for name, capability in NEEDS.items() if capability in off):
        fields.pop(name, None)
    parameters = [_parameter("path", name, fields.pop(name), required=True) for name in FIELDS.findall(row.path)]
    if row.verb == "GET":
        parameters += [_parameter("query", name, field, required=name in required) for name, field in fields.items()]
        if row.method.params is SubscribeRequest and "session-store" not in off:
            parameters.append(_header("Last-Event-ID", EVENT_TEXT, {"type": "string", "pattern": EVENT_ID}))
    wanted: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if row.verb in WITH_BODY and fields:
        if KEY in fields:  # a parameter of its own could contradict this one
            fields[KEY] = {**fields[KEY], "description": f"{fields[KEY]['description']} {KEY_TEXT}"}
        body = {**schema, "properties": fields, "required": sorted(required & set(fields))}
        wanted["requestBody"] = {"required": bool(body["required"]), "content": {JSON: {"schema": body}}}
        if FILES in fields:
            wanted["requestBody"]["description"] = FORM_TEXT
    return wanted


def _parameter(place: str, name: str, schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    """Return a parameter. A query has no null: the parameter is left out instead."""
    schema = dict(schema)
    description = schema.pop("description", None)
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    for kind in kinds:
        schema |= kind
    parameter = {"name": name, "in": place, "required": required, "schema": schema}
    parameter |= {"description": description} if description else {}
    if schema.get("type") == "object":
        schema["propertyNames"] = {"minLength": 1, "not": {"pattern": re.escape(NESTED)}}
        parameter |= {"style": "deepObject", "explode": True}
    return parameter


def _header(name: str, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _signed_call(got: Schemas) -> dict[str, Any]:
    """Return the operation of services that make signed calls: it is no method, and needs no token."""
    said = {"content": {JSON: {"schema": got.of(Delivered)}}}
    answers = {
        "200": {"description": "The call of GitHub that only tries the address.", **said},
        "202": {"description": "The prompt is stored, or was left out as the one before had not ended.", **said},
        "410": _failure("The trigger has ended."),
    }
    failures = {str(each): {"$ref": f"#/components/responses/{each}"} for each in SIGNED}
    return {
        "operationId": "trigger_call",
        "summary": "Make the prompt of a trigger, once for each id of a call.",
        "description": SIGNED_TEXT,
        "security": [{}],
        "parameters": [_parameter("path", "trigger_id", {"type": "string"}, required=True)],
        "requestBody": {"required": False, "content": {JSON: {"schema": {}}}},
        "responses": answers | failures,
    }


def _failed(row: RestRoute, got: Schemas) -> dict[str, Any]:
    """Return the answer that says of itself that something failed; there may be no room for the request as well."""
    schema = {"anyOf": [got.of(row.method.result), {"$ref": COMPONENTS + ERROR}]}
    return {"description": "Its `status` is `failed`; or there is no room.", "content": {JSON: {"schema": schema}}}


def _failure(description: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": {"$ref": COMPONENTS + ERROR}}}}
