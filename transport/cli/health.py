"""`warren health`: a probe of a server, with the modules of Python alone."""

from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import click

from warren.errors import InvalidParamsError
from warren.transport.cli.streams import Streams
from warren.transport.http.config import GatewayConfig
from warren.transport.http.probes import LIVE, READY

SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - they are compared with
"""The address of this machine by the one that a server listens to."""


class _Stays(HTTPRedirectHandler):
    """Takes a redirection for the answer: what is elsewhere is not the server that was asked for."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: no other request follows."""


def url_of(host: str | None, port: int | None) -> str:
    """Return the URL of the server of settings, on this machine. Raises InvalidParamsError if its port is picked."""
    usual = GatewayConfig()
    host, port = usual.host if host is None else host, usual.port if port is None else port
    if port == 0:
        problem = "the port of the settings is 0, so the system picks it: name the URL of the server"
        raise InvalidParamsError(f"$.port: {problem}", path="$.port")
    host = HERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check(url: str, *, live: bool, timeout: float) -> None:
    """Ask a server, and say in one line what it answers.

    Args:
        url: the server; below a path, if its URL has one.
        live: whether to ask only if it lives.
        timeout: seconds to wait for each part of the answer.

    Raises:
        InvalidParamsError: for a URL that is none of HTTP.
        click.exceptions.Exit: with 1 if it is not ready, or does not answer.
    """
    problem = _problem(_probe_of(url, LIVE if live else READY), timeout)
    if problem is not None:
        Streams().note(f"{url}: {problem}", "red")
        raise click.exceptions.Exit(1)
    Streams().write(f"{url}: {'alive' if live else 'ready'}\n")


def _probe_of(url: str, path: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InvalidParamsError(f"$.url: {url!r} is not like http://127.0.0.1:8420", path="$.url")
    return parts._replace(
        scheme=SCHEMES[parts.scheme], path=parts.path.rstrip("/") + path, query="", fragment=""
    ).geturl()


def _problem(url: str, timeout: float) -> str | None:
    """Return why a probe failed; None if it did not. A proxy of the environment is not asked: it is not the server."""
    opener = build_opener(ProxyHandler({}), _Stays())
    try:
        with opener.open(Request(url, method="GET"), timeout=timeout) as answer:  # noqa: S310 - the scheme is checked
            return None if answer.status == HTTPStatus.OK else f"it answers {answer.status}"
    except HTTPError as exc:
        return (
            "not ready" if exc.code == HTTPStatus.SERVICE_UNAVAILABLE else f"it answers {exc.code}: no server of Warren"
        )
    except URLError as exc:
        reason = exc.reason
        return f"cannot be reached: {getattr(reason, 'strerror', None) or reason}"
    except (HTTPException, OSError, ValueError) as exc:
        return f"does not answer: {str(exc) or type(exc).__name__}"
