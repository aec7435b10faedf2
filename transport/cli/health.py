"""`warren health`: a probe of a server, with the modules of Python alone."""

import socket
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import click

from warren.base.errors import InvalidParamsError
from warren.transport.access.addresses import WEBSOCKET_PATH, path_in, url_at
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.command import command
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import config_option, output_options
from warren.transport.cli.settings.values import duration_of, text_of
from warren.transport.cli.terminal.streams import Streams
from warren.transport.http.probes import LIVE, READY

SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - they are compared with
"""The address of this machine by the one that a server listens to."""


class _Stays(HTTPRedirectHandler):
    """Takes a redirection for the answer: what is elsewhere is not the server that was asked for."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: no other request follows."""


@command(
    "warren health",
    "warren health https://warren.example.com --timeout 10s",
    "warren health --live http://10.0.0.5:8420",
    note="In a Dockerfile: HEALTHCHECK CMD warren health",
)
@click.argument("url", type=text_of, required=False)
@click.option("--live", is_flag=True, help="Ask only whether the server answers, also while it drains.")
@click.option("--timeout", type=duration_of, metavar="TIME", default="5", show_default="5s", help="Time to wait.")
@of_field(GatewayConfig, "host", metavar="ADDRESS")
@of_field(GatewayConfig, "port")
@config_option
@output_options
def health(url: str | None, *, live: bool, timeout: float, host: str | None, port: int | None) -> None:
    """Ask a server whether it is ready; the exit code is 0 if it is, else 1.

    URL is that of the server, with http or https. Without one it is the server of these settings on this machine. No
    token is needed. For images without curl: it needs no more than the command itself.
    """
    check(url or url_of(host, port), live=live, timeout=timeout)


def url_of(host: str | None, port: int | None) -> str:
    """Return the URL of the server of settings, on this machine. Raises InvalidParamsError if its port is picked."""
    usual = GatewayConfig()
    host, port = usual.host if host is None else host, usual.port if port is None else port
    if port == 0:
        problem = "the port of the settings is 0, so the system picks it: name the URL of the server"
        raise InvalidParamsError.at("$.port", problem)
    return url_at(HERE.get(host, host), port)


def check(url: str, *, live: bool, timeout: float) -> None:
    """Ask a server, and say in one line what it answers.

    Args:
        url: the server; below a path, if its URL has one. That of its WebSocket will do, too.
        live: whether to ask only if it lives.
        timeout: seconds to wait for each part of the answer.

    Raises:
        InvalidParamsError: for a URL that is none of HTTP.
        click.exceptions.Exit: with 1 if it is not ready, or does not answer.
    """
    probe, path = LIVE if live else READY, path_in(url)
    problem = _problem(_probe_of(url, probe), timeout) if path is None else _problem_at(path, probe, timeout)
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
        raise InvalidParamsError.at("$.url", f"{url!r} is not like http://127.0.0.1:8420")
    below = parts.path.rstrip("/").removesuffix(WEBSOCKET_PATH)
    return parts._replace(scheme=SCHEMES[parts.scheme], path=below + path, query="", fragment="").geturl()


def _problem(url: str, timeout: float) -> str | None:
    """Return why a probe failed; None if it did not. A proxy of the environment is not asked: it is not the server."""
    opener = build_opener(ProxyHandler({}), _Stays())
    try:
        with opener.open(Request(url, method="GET"), timeout=timeout) as answer:  # noqa: S310 - the scheme is checked
            return _told(answer.status)
    except HTTPError as exc:
        return _told(exc.code)
    except URLError as exc:
        return _away(exc.reason)
    except (HTTPException, OSError, ValueError) as exc:
        return f"does not answer: {str(exc) or type(exc).__name__}"


def _problem_at(path: str, probe: str, timeout: float) -> str | None:
    """Return why a probe over a Unix socket failed; None if it did not."""
    connection = HTTPConnection("localhost", timeout=timeout)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(timeout)
    try:
        connection.sock.connect(path)
        connection.request("GET", probe)
        return _told(connection.getresponse().status)
    except HTTPException as exc:
        return f"does not answer: {str(exc) or type(exc).__name__}"
    except OSError as exc:
        return _away(exc)
    finally:
        connection.close()


def _told(status: int) -> str | None:
    """Return what a status says; None if the server is well."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "not ready"
    return None if status == HTTPStatus.OK else f"it answers {status}: no server of Warren"


def _away(reason: object) -> str:
    return f"cannot be reached: {getattr(reason, 'strerror', None) or reason}"
