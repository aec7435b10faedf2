"""`docs/protocol.md`, made from the table of methods: `python -m tests.docs.protocol_page > FILE`."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import attrs

from warren.base.errors import NUMBERS
from warren.base.fields import LARGEST
from warren.calls.base import SessionRef
from warren.conversation import aliases, codec
from warren.conversation.events import Envelope
from warren.conversation.views import SessionChanges
from warren.transport.rpc.client_tools import EXECUTE, ExecuteTool, ToolAnswer
from warren.transport.rpc.dialect import CHANGED, EVENT, UNSUBSCRIBED
from warren.transport.rpc.methods import METHODS, Method
from warren.transport.rpc.schemas import Schema, Schemas

INTRODUCTION: Final = """\
# The protocol

<!-- Made by `make docs` from the table of methods; a test compares the two. -->

Warren speaks [JSON-RPC 2.0](https://www.jsonrpc.org/specification) over a WebSocket (`warren serve`, at `/ws`, one
message a text frame) and over the standard streams (`warren rpc`, one message a line). Both are the same protocol.

```
$ echo '{"jsonrpc":"2.0","id":1,"method":"session/create","params":{"prompt":"hello"}}' | warren rpc --model echo
```

* Requests run concurrently: each reply is sent when it is ready, under the `id` of its request.
* The reply to `session/create` and `turn/start` comes after the last event of its turn, and after the turn was stored.
* A turn goes on if its client disconnects: it is stored and can be read.
* Unknown members and parameters are refused; the error names the bad field, such as `$.budget.max_steps`. Results may
  get new fields in newer versions: ignore fields that you do not know.
* A message that is not JSON, or a line of more than 16 MiB, is answered with an error under the id null, and the
  connection stays open. A message of more than 1 MiB over a WebSocket [closes it](websocket.md#frames). A larger file
  goes ahead of its prompt, in pieces: `file/put`.
* A batch, a list of messages, gets one list of replies when the last of them is ready. It may have at most 256
  messages, the number of requests that may be unanswered.
* A client that reads slowly never slows a turn and misses nothing: events wait in the log until it has read the earlier
  ones. Adjacent deltas may reach it as one, with `first_seq`. A `stream_truncated` replaces events that no log has any
  more: removed by retention, damaged, or, without a store, older than the newest ones that are kept.
* A turn whose process has ended goes on in the next one, which says so by `turn_resumed`. Of the events of the turn
  above its `kept_seq`, text, reasoning and files do not count, and calls are gone unless they are requested again.
* `warren rpc` writes only protocol messages to stdout. At the end of its input it answers the requests that still run,
  for ten seconds at most; SIGTERM ends it without that time.
"""
TOOLS: Final = f"""\
## Tools of the client

A client that has registered tools with `tools/register` is asked to run them: the server sends it the request
`{EXECUTE}` with an id of its own, and waits for the response. Several calls may wait at once; the id tells them apart.
Tools belong to the connection: they are offered in the turns that it starts, and in no others.

A call fails if the client answers with an error or in another form, or if it does not answer within the time limit for
tools. The model then gets an error as the result, and the turn goes on. An interrupt ends the wait; a response that
comes later is dropped.

If the client or the server is gone before the answer, a call of a [durable turn](durable-turns.md) waits for a client
that comes back, to any node: it registers the tool, and then waits for the turn by `turn/wait`, or sends its request
again under the same key. A client that only subscribes, or that only registers the tool, is not asked. The call is then
asked for again, with the same `session_id`, `call_id` and `key`: a client that knows the key answers with the result
that it has, or once it has it. A call that no client takes within `limits.approval_timeout` ends with an error, which
says that its result is not known. Without a store, or with `durability = "turn"`, a call fails as soon as its client is
gone.
"""
ENDS: Final = f"""\
### The end of a subscription

The notification `{UNSUBSCRIBED}` comes after the last event of a subscription that ended without a request of the
client: the session was archived or deleted, or its events cannot be read; in the last case a `stream_truncated` comes
before it. No more events come unless the client subscribes again. `session/unsubscribe` has a reply instead.
"""
CHANGES: Final = f"""\
## The list of sessions

The notification `{CHANGED}` has the changes of the list since the one before it, for a client that watches the list
with `session/watch`. It comes a few times a second at most, and has each session once, as it is now. The first one
has the sessions whose turn runs. A client that wants the whole list watches first, and then calls `session/list`:
nothing falls between the two. The changes of a client that reads slowly are merged. If there were changes that nobody
can tell of, those of another node for example, `missed` is true, and the client lists the sessions again. A
connection has one watch; `session/unwatch` or the end of the connection ends it.
"""
ALIASES: Final = """\
## Aliases

These names are taken on every surface, and by `SessionService`, beside the names that the tables above have. A switch
may be true (`enable`), false (`disable`) or null (`inherit`) there. An option that is given under both names is
refused. On the command line they are `--host-mode`, `--override-KIND inherit|enable|disable` and `--tools full`, which
offers the files of the working folder, the web, the shell and the memory, or switches these kinds on at a `--server`.
"""
MEERKAT: Final = """\
## In the place of rkat-rpc

With `--contract` `warren rpc` speaks the protocol of Meerkat's `rkat-rpc` instead: see
[over the standard streams](stdio.md#in-the-place-of-rkat-rpc).
"""


def protocol_page() -> str:
    """Return the page in Markdown."""
    asked, told = Schemas(strict=True), Schemas(strict=False)
    methods = [line for method in METHODS.values() for line in _method(method, asked, told)]
    tools = [TOOLS, *_object(asked, ExecuteTool, "Parameters"), *_object(asked, ToolAnswer, "Response")]
    events = [f"## Events\n\nThe notification `{EVENT}` has one event.\n", *_object(told, Envelope, "Parameters")]
    changes = [CHANGES, *_object(told, SessionChanges, "Parameters")]
    ends = [ENDS, *_object(told, SessionRef, "Parameters")]
    index = ["## Methods\n", *_table(("method", "needs", ""), map(_index_row, METHODS.values()))]
    # Of two schemas with one name the page shows the one of parameters: that one has the required fields.
    types = _types(told.definitions | asked.definitions)
    page = "\n".join(
        [INTRODUCTION, *index, *methods, *tools, *events, *ends, *changes, *types, *_aliases(), *_errors(), "", MEERKAT]
    )
    return re.sub(r"\bNone\b", "null", page)


def _aliases() -> Iterator[str]:
    taken = {**aliases.SESSION_OPTIONS, **aliases.TOOLS}
    rows = [(f"`{alias}`", f"`{name}`", _taken_by(alias)) for alias, name in taken.items()]
    return chain([ALIASES], _table(("alias", "is", "of"), rows))


def _taken_by(alias: str) -> str:
    if alias in aliases.TOOLS:
        return "the tools of a session, the calls of its model, the tools of MCP (`warren_memory_search`)"
    return "sessions and turns" if alias in aliases.TURN_OPTIONS else "sessions"


def _index_row(method: Method[Any, Any]) -> Sequence[str]:
    anchor = method.name.replace("/", "")
    return f"[`{method.name}`](#{anchor})", method.capability or "", method.doc


def _method(method: Method[Any, Any], asked: Schemas, told: Schemas) -> Iterator[str]:
    yield f"### {method.name}\n\n{method.doc}\n"
    if method.capability is not None:
        yield f"Needs the capability `{method.capability}`, at least for sessions that are not in memory.\n"
    yield from _object(asked, method.params, "Parameters")
    yield from _object(told, method.result, "Result")


def _object(schemas: Schemas, cls: type, title: str) -> Iterator[str]:
    """Describe one class at its method; the classes of its fields are described once, at the end of the page."""
    schema = schemas.of_class(cls)
    if not schema["properties"]:
        yield f"**{title}:** none.\n"
        return
    yield f"**{title}** ({cls.__name__})\n" if title == "Result" else f"**{title}**\n"
    yield from _fields(schema)


def _types(definitions: Mapping[str, Schema]) -> Iterator[str]:
    yield "## Types\n"
    for name in sorted(definitions):
        yield f"### {name}\n\n{definitions[name].get('description', '')}\n"
        yield from _fields(definitions[name])


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    taken = "additionalProperties" in schema
    rows = (
        (f"`{name}`", _kind(field), _presence(field, taken, name in required), field.get("description", ""))
        for name, field in schema["properties"].items()
    )
    yield from _table(("field", "type", "", ""), rows)


def _presence(field: Schema, taken: bool, required: bool) -> str:  # noqa: FBT001 - two columns of one table
    """Return the words for a field that is required in parameters, or may be missing in results."""
    if required:
        return "required" if taken else ""
    return f"default `{codec.encode(field['default']).decode()}`" if "default" in field else "optional"


def _kind(schema: Schema) -> str:
    """Return the words for a schema."""
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        return ", ".join(f'`"{choice}"`' for choice in schema["enum"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(_kind(choice) for choice in choices)
    return _plain(schema) + _bounds(schema)


def _plain(schema: Schema) -> str:
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"object of {_kind(schema['additionalProperties'])}"
        case None:
            return "any"
        case kind:
            return {"date-time": "time (RFC 3339)"}.get(schema.get("format", ""), str(kind))


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", LARGEST)
    if "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']}" + (f", at most {high}" if high != LARGEST else "")
    if low is None:
        return ""
    return f" from {low}" + (f" to {high}" if high != LARGEST else "")


def _errors() -> Iterator[str]:
    yield "## Errors\n\nAn error has a number and, in `data`, the body that is the same on every surface.\n"
    yield "```json\n" + ERROR_EXAMPLE + "\n```\n"
    rows = ((f"`{code.value}`", *map(_number, attrs.astuple(numbers))) for code, numbers in NUMBERS.items())
    yield from _table(("`data.code`", "JSON-RPC", "HTTP", "exit code", "ACP"), rows)
    yield "In addition, -32700 is a message that is not JSON, -32600 a message that is not a request, -32601 an unknown"
    yield "method, and -32603 a fault of the server."


ERROR_EXAMPLE: Final = (
    '{"jsonrpc": "2.0", "id": 7, "error": {"code": -32002, "message": "the session runs a turn",\n'
    ' "data": {"code": "SESSION_BUSY", "message": "the session runs a turn", "retryable": true, "session_id": "…"}}}'
)


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(protocol_page())
