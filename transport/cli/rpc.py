"""`warren rpc`: JSON-RPC on the standard streams, until its client or a signal ends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

import attrs

from warren.database_url import DatabaseUrl
from warren.errors import InvalidParamsError
from warren.transport.cli.options import Options
from warren.transport.cli.pipe import PipeClient, serve_pipe
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.dialect import Dialect
from warren.transport.stdio.server import StdioConfig, serve_stdio
from warren.values import frozen

REALMS: Final = "realms"


@frozen
class Realm:
    """The choice of a store, in the terms of rkat-rpc.

    Attributes:
        name: sessions of one name do not see those of another; None is the store itself.
        isolated: use a new store.
        root: the folder of all stores, instead of the usual one.
    """

    name: str | None = None
    isolated: bool = False
    root: Path | None = None

    @contextmanager
    def opened(self, options: Options) -> Iterator[Options]:
        """Yield the options with the chosen store; an isolated one without a root is removed at the end."""
        named = options.store_named or self.root is not None
        if self.isolated and self.root is None and options.store is not None:
            with TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as own:
                yield attrs.evolve(options, store=Path(own), store_named=False)
            return
        root = self.root or options.store
        if isinstance(root, DatabaseUrl) and self.name is not None:
            problem = f"$.realm: a realm is a folder within that of the store, and the store is the database {root}"
            raise InvalidParamsError(problem, path="$.realm")
        if isinstance(root, DatabaseUrl):
            yield options
            return
        name = uuid4().hex if self.isolated else self.name
        folder = root if root is None or name is None else root / REALMS / name
        yield attrs.evolve(options, store=folder, store_named=named)


def rpc(options: Options, realm: Realm, contract: str | None) -> None:
    """Run `warren rpc`. Ends and raises as `serve_pipe`, and InvalidParamsError for an unknown contract."""
    dialect = dialect_of(contract)
    with realm.opened(options) as chosen:
        serve_pipe(chosen, lambda client: _serve(client, dialect))


async def _serve(client: PipeClient, dialect: Dialect) -> None:
    stdio = StdioConfig(linger=client.config.limits.drain, runtime=client.config)
    streams = (client.incoming, client.outgoing)
    await serve_stdio(client.service, stdio, streams, dialect, client.stop, end_turns=client.service.stop)
