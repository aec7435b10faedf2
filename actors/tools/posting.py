"""Posts to addresses that users name, and trusts none of them: no answer can harm the process, or hold it up."""

import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from typing import Final

import httpx
import trio

from warren.actors.tools.fetch import Network, Pinned, checked, network, reached_problem, why
from warren.base.values import frozen
from warren.conversation.webhooks import Answer
from warren.models.tools import ToolError

SECONDS: Final = 15.0
"""Seconds for an attempt, with the look-up of the name, the connection, and the head of the answer."""
ENOUGH: Final = 4096
"""Bytes of the body of an answer that are read, for receivers that count on it, and then thrown away."""
LISTENS_FOR: Final = 1.0
"""Seconds for which they are read."""
LOOK_UPS: Final = 200
"""Look-ups of names at once; one whose server says nothing goes on beyond the attempt."""
LONGEST_PROBLEM: Final = 500
_FAILURES: Final = (trio.TooSlowError, ToolError, httpx.HTTPError, httpx.InvalidURL, UnicodeError)
_PUT_OFF: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def address_problem(url: str, allow: Sequence[str]) -> str | None:
    """Return the reason why nothing may be posted to an address; None if none is known before its name is looked up.

    Args:
        url: the address.
        allow: networks that are allowed besides the public internet.
    """
    try:
        parsed = checked(url)
    except ToolError as exc:
        return str(exc).removeprefix("url: ")
    networks = tuple(map(network, allow))
    try:
        address = ipaddress.ip_address(parsed.host)
    except ValueError:
        plain = parsed.scheme == "http" and not networks
        return "must begin with https://" if plain else None
    return reached_problem(address, networks, plain=parsed.scheme == "http")


@frozen
class Poster:
    """Posts to addresses of the public internet, and of the networks that are allowed.

    Attributes:
        allow: these networks.
        look_ups: bounds the look-ups of names.
        seconds: for one attempt.
        tls: the certificates that are trusted.
    """

    allow: tuple[Network, ...]
    look_ups: trio.CapacityLimiter
    seconds: float = SECONDS
    tls: Callable[[], ssl.SSLContext] = cache(httpx.create_ssl_context)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post once, and return what became of it. No redirect is followed, and the body of the answer is ignored."""
        answer: list[Answer] = []
        try:
            with trio.fail_after(self.seconds):
                await self._post(url, headers, body, answer)
        except _FAILURES as exc:
            answer.append(Answer(problem=self._problem(exc, self.seconds)))
        return answer[0]  # once there was an answer, its body cannot change it

    async def ask(
        self, url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, most: int
    ) -> tuple[Answer, bytes]:
        """Post once, and return what became of it, and the body of the answer. No redirect is followed.

        Args:
            url: the address.
            headers: the headers.
            body: the body.
            seconds: for all of it, in place of the poster's own.
            most: bytes of an answer; one that is longer is a failure.
        """
        try:
            with trio.fail_after(seconds):
                found = bytearray()
                headers = {**headers, "accept-encoding": "identity"}
                async with self._sent(url, headers, body, seconds) as response:
                    with trio.CancelScope() as enough:  # not a `break`, as below
                        async for piece in response.aiter_raw():
                            found += piece
                            if len(found) > most:
                                enough.cancel()
        except _FAILURES as exc:
            return Answer(problem=self._problem(exc, seconds)), b""
        if len(found) > most:
            return Answer(problem=f"the answer has more than {most} bytes"), b""
        return _answer(response), bytes(found)

    def _problem(self, exc: Exception, seconds: float) -> str:
        if isinstance(exc, trio.TooSlowError):
            return f"the receiver took longer than {seconds:g} s"
        if isinstance(exc, ToolError):
            return _short(str(exc).removeprefix("url: "))
        return _short(f"it could not be posted: {why(exc)}")

    @asynccontextmanager
    async def _sent(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> AsyncIterator[httpx.Response]:
        """Post, and have the answer for a body, whose own body is still to be read."""
        # A transport of its own: a pool would take a connection to an address for one to another name there.
        inner = httpx.AsyncHTTPTransport(verify=self.tls(), trust_env=False)
        transport = Pinned(self.allow, inner, tls_only=True, look_up=self._look_up)
        async with (
            httpx.AsyncClient(transport=transport, timeout=seconds, trust_env=False) as client,
            client.stream("POST", checked(url), headers=headers, content=body, follow_redirects=False) as response,
        ):
            yield response

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes, answer: list[Answer]) -> None:
        async with self._sent(url, headers, body, self.seconds) as response:
            answer.append(_answer(response))
            size = 0
            # A `break` would leave httpx's generators to the garbage collector; a cancellation ends them in order.
            with trio.move_on_after(LISTENS_FOR) as enough:
                async for piece in response.aiter_raw():
                    size += len(piece)
                    if size > ENOUGH:
                        enough.cancel()

    async def _look_up(self, host: str) -> list[str]:
        def look_up() -> list[str]:
            return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]

        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            return await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self.look_ups)


def poster(allow: Sequence[str]) -> Poster:
    """Return what posts to the public internet, and to some networks besides."""
    return Poster(tuple(map(network, allow)), trio.CapacityLimiter(LOOK_UPS))


def _answer(response: httpx.Response) -> Answer:
    status = response.status_code
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Answer(status)
    retry_after = _seconds(response.headers.get("retry-after", "")) if status in _PUT_OFF else None
    return Answer(status, _short(f"the receiver answered {status} {response.reason_phrase}".rstrip()), retry_after)


def _seconds(text: str) -> float | None:
    """Return the seconds of a `Retry-After`, from now on; None if it is none."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text[:20])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else max(0.0, (at - datetime.now(UTC)).total_seconds())


def _short(problem: str) -> str:
    return problem[:LONGEST_PROBLEM].encode("utf-8", "backslashreplace").decode()
