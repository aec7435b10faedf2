"""The gateway that a command uses in place of a runtime of its own."""

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import attrs
import click

from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.values import frozen
from warren.calls.facade import SessionService
from warren.transport.access.token_list import is_token, read_token

TOKEN: Final = "WARREN_TOKEN"  # noqa: S105 - a name


@frozen
class Server:
    """A gateway.

    Attributes:
        url: its address, as `warren.client.connect` takes it.
        token: the token of its clients; None if it has none.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)


def server_of(url: str, token_file: Path | None, environ: Mapping[str, str]) -> Server:
    """Return the server of a command; a file wins over the variable. Raises InvalidParamsError for a bad token."""
    if token_file is not None:
        return Server(url, read_token(token_file))
    token = environ.get(TOKEN) or None
    if token is not None and not is_token(token):
        raise InvalidParamsError.at(f"$.{TOKEN}", "must be one word of ASCII characters")
    return Server(url, token)


def open_server(server: Server, tenant: str | None = None) -> AbstractAsyncContextManager[SessionService]:
    """Connect to a server; None is the tenant of the token.

    Raises as `connect` does, with the path `$.server` for a bad address, and click.ClickException if the extra is
    missing.
    """
    if problem := missing("client", "--server needs"):
        raise click.ClickException(problem)
    from warren.transport.client import connect  # noqa: PLC0415 - it has an extra of its own
    from warren.transport.client.service import address_of  # noqa: PLC0415 - the same

    try:
        address = address_of(server.url)
    except InvalidParamsError as exc:
        raise exc.of("$.server") from None
    logging.getLogger("httpx").setLevel(logging.WARNING)  # --verbose tells of the session, not of HTTP
    return connect(address, token=server.token, tenant=tenant)
