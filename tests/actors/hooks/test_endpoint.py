"""Addresses of hooks on real sockets."""

import json

import pytest
import trio

from tests.support.receiver import Posted, receiving
from warren.actors.hooks.endpoint import MOST, post_event
from warren.actors.hooks.told import HookError, Told
from warren.actors.tools.posting import poster
from warren.settings.hook_config import HookEntry

LOCAL = ("127.0.0.0/8",)


def says(status: str, body: bytes = b"") -> bytes:
    """Return a response."""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def post(response: bytes, *, seconds: float = 10, **more: object) -> tuple[Told, Posted]:
    """Post an event to a receiver that answers so, and return the answer and what was posted."""

    async def answer(stream: trio.SocketStream, _posted: Posted) -> None:
        await stream.send_all(response)

    async with receiving(answer) as receiver:
        entry = HookEntry(event="PreToolUse", url=receiver.url, timeout=seconds, **more)  # type: ignore[arg-type]
        told = await post_event(entry, b'{"a": 1}', {"KEY": "k", "OTHER": "o"}, poster(LOCAL))
        return told, receiver.posted[0]


async def test_an_event_is_posted() -> None:
    """As JSON, with headers that may name variables."""
    told, posted = await post(says("200 OK", b'{"x": 1}'), headers={"Authorization": "Bearer $KEY-${KEY}$NONE"})
    assert told == Told(0, '{"x": 1}', plain=False)
    assert json.loads(posted.body) == {"a": 1}
    assert posted.headers["authorization"] == "Bearer k-k"
    assert posted.headers["content-type"] == "application/json"


async def test_403_blocks() -> None:
    """With the body as its reason."""
    told, _ = await post(says("403 Forbidden", b"not here"))
    assert told == Told(2, err="not here", plain=False)


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (says("500 Oops"), "answered 500 Oops"),
        (says("302 Found\r\nlocation: http://127.0.0.1:1/"), "answered 302"),
        (says("200 OK", b"x" * (MOST + 1)), f"more than {MOST} bytes"),
        (b"nonsense\r\n\r\n", "could not be posted"),
    ],
)
async def test_other_answers_are_failures(response: bytes, problem: str) -> None:
    """Redirects too, which are not followed."""
    with pytest.RaisesGroup(pytest.RaisesExc(HookError, match=problem)):
        await post(response)


async def test_an_address_that_hangs() -> None:
    """Is a failure once its time is over."""

    async def hang(_stream: trio.SocketStream, _posted: Posted) -> None:
        await trio.sleep_forever()

    async with receiving(hang) as receiver:
        entry = HookEntry(event="PreToolUse", url=receiver.url, timeout=0.2)
        with pytest.raises(HookError, match=r"longer than 0\.2 s"):
            await post_event(entry, b"{}", {}, poster(LOCAL))


async def test_an_address_inside_needs_its_network() -> None:
    """As for webhooks."""
    entry = HookEntry(event="PreToolUse", url="http://127.0.0.1:9/", timeout=5)
    with pytest.raises(HookError, match=r"127\.0\.0\.1"):
        await post_event(entry, b"{}", {}, poster(()))
