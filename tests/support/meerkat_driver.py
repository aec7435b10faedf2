"""A program that uses Meerkat's Python client, of whatever version it finds, as its users do.

Called with the path of a program in the place of `rkat-rpc` and a new folder. It ends with 0, or with the traceback of
what was not as its version promises. A method that a version does not have is passed over.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import meerkat  # type: ignore[import-untyped]

LIMIT = 60.0
TURN = ["RunStarted", "TurnStarted", "TextDelta", "TextComplete", "TurnCompleted", "RunCompleted"]
TOOL_MODEL = {
    "steps": [{"tool_calls": [{"name": "lookup", "args": {"q": "x"}}]}, {"text": "done"}],
    "loop": True,
}


def field(result: Any, name: str) -> Any:
    """Return a member of an answer, which is plain data in the oldest versions."""
    return result[name] if isinstance(result, dict) else getattr(result, name)


async def kinds(stream: Any) -> list[str]:
    """Return the kinds of a stream's events, those in a row once."""
    found: list[str] = []
    async with stream as events:
        async for event in events:
            kind = type(event).__name__
            if found[-1:] != [kind]:
                found.append(kind)
    return found


async def refused(call: Any) -> Any:
    """Return the error that a call ends with."""
    try:
        await call
    except meerkat.MeerkatError as error:
        return error
    raise AssertionError("the call was not refused")


async def turns(client: Any) -> Any:
    """Run turns with and without a stream; return their session."""
    session = await client.create_session("hello there")
    assert session.text == "hello there", session.text
    stream = session.stream("one two")
    assert await kinds(stream) == TURN
    assert stream.result.text == "one two", stream.result
    assert await kinds(client.create_session_streaming("new one")) == TURN
    assert (await session.turn("again")).text == "again"
    return session


async def views(client: Any, session: Any) -> None:
    """List and read."""
    rows = {field(row, "session_id"): field(row, "message_count") for row in await client.list_sessions()}
    assert (len(rows), rows[session.id]) == (2, 6), rows
    details = await client.read_session(session.id)
    assert field(details, "message_count") == 6, details
    if hasattr(client, "read_session_history"):
        history = await client.read_session_history(session.id)
        assert [each.role for each in history.messages] == ["user", "block_assistant"] * 3, history
    if hasattr(client, "get_models_catalog"):
        assert await client.get_models_catalog()
    assert await client.get_config()


async def deferred(client: Any) -> None:
    """Begin a session whose first turn comes later."""
    session = await client.create_deferred_session("first")
    assert (await session.start_turn("now")).text == "first\n\nnow"
    assert (await session.start_turn("then")).text == "then"


async def injected(client: Any, session: Any) -> None:
    """Tell a session something, twice under one key, and let a turn take it while its events are followed."""
    said = [await client.inject_context(session.id, "it rains", idempotency_key="k") for _ in range(2)]
    assert field(said[0], "status") in {"staged", "applied"}, said
    assert field(said[1], "status") == "duplicate", said
    async with await session.subscribe_events() as subscription:
        await session.turn("and now?")
        await session.archive()
        told = [type(envelope.payload).__name__ async for envelope in subscription]
    assert list(dict.fromkeys(told)) == TURN, told


async def archived(client: Any, session: Any) -> None:
    """Read a session that is archived, and see that it is in no list."""
    assert session.id not in {field(row, "session_id") for row in await client.list_sessions()}
    assert field(await client.read_session(session.id), "session_id") == session.id


async def errors(client: Any, *, coded: bool) -> None:
    """Meet refusals; the oldest versions know numbers alone."""
    missing = await refused(client.read_session("00000000-0000-0000-0000-000000000000"))
    assert "Session not found" in missing.message, missing
    unknown = await refused(client.create_session("x", model="nobody-knows"))
    assert "$.model" in unknown.message, unknown
    if coded:
        assert (missing.code, unknown.code) == ("SESSION_NOT_FOUND", "INVALID_PARAMS")
    no_method = await refused(client._request("no/method", {}))  # noqa: SLF001 - no version has a method for it
    assert no_method.code in {"METHOD_NOT_FOUND", "-32601"}, no_method.code


async def tools(client: Any, folder: Path) -> None:
    """Let the model call a function of this program."""
    script = folder / "script.json"
    script.write_text(json.dumps(TOOL_MODEL), encoding="utf-8")
    session = await client.create_session("look", model=f"scripted:{script}")
    assert session.text == "done", session.text


async def main(program: str, folder: Path) -> None:
    """Use the client from end to end."""
    client: Any = meerkat.MeerkatClient(rkat_path=program)
    asked: list[Any] = []

    async def lookup(arguments: Any) -> str:
        asked.append(arguments)
        return "found"

    has_tools = hasattr(client, "tool")
    if has_tools:
        client.tool("lookup", description="Look it up", input_schema={"type": "object"})(lookup)
    await client.connect(realm_id="r", state_root=str(folder / "stores"))
    assert client.has_capability("sessions")
    session = await turns(client)
    await views(client, session)
    await session.interrupt()
    if hasattr(client, "create_deferred_session"):
        await deferred(client)
    if hasattr(client, "inject_context"):
        await injected(client, session)
    else:
        await session.archive()
    await archived(client, session)
    await errors(client, coded=hasattr(client, "inject_context"))
    if has_tools:
        await tools(client, folder)
        assert asked == [{"q": "x"}], asked
    await client.close()


asyncio.run(asyncio.wait_for(main(sys.argv[1], Path(sys.argv[2])), LIMIT))
