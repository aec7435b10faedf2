"""Posts to names whose addresses change: the address that was checked is the one that is connected to."""

import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from tests.support.receiver import OK
from warren.actors.tools.posting import poster

NAME = "rebinding.example"


@attrs.define(eq=False)
class Resolver:
    """Gives one name another address with each look-up; numbers, and all other names, are looked up as ever.

    Attributes:
        answers: the addresses to come; the last one stays.
        asked: look-ups of the name so far.
    """

    answers: Sequence[str]
    asked: int = 0
    ever: Any = attrs.field(factory=lambda: socket.getaddrinfo)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        """Look a name up."""
        if host not in (NAME, NAME.encode()):
            return self.ever(host, port, *args, **options)
        address = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return self.ever(address, port, *args, **options)


async def receive(hits: list[str], stream: trio.SocketStream) -> None:
    """Note the address of this receiver, and answer 200."""
    hits.append(stream.socket.getsockname()[0])
    await stream.receive_some()
    await stream.send_all(OK)
    await stream.aclose()


async def test_a_name_that_changes_between_check_and_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up once for a post; the next post looks it up, and refuses what it has become."""
    resolver, hits = Resolver(("127.0.0.1", "127.0.0.2")), list[str]()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    async with trio.open_nursery() as nursery:
        (allowed,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = allowed.socket.getsockname()[1]
        (inner,) = await trio.open_tcp_listeners(port, host="127.0.0.2")
        nursery.start_soon(partial(trio.serve_listeners, partial(receive, hits), [allowed, inner]))
        posts = poster(("127.0.0.1/32",))
        with trio.fail_after(30):
            first = await posts.post(f"http://{NAME}:{port}/", {}, b"{}")
            assert (first.status, hits, resolver.asked) == (200, ["127.0.0.1"], 1)
            second = await posts.post(f"http://{NAME}:{port}/", {}, b"{}")
        assert second.status is None
        assert "127.0.0.2" in str(second.problem)
        assert hits == ["127.0.0.1"]
        nursery.cancel_scope.cancel()
