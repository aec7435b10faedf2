"""`warren rpc`: JSON-RPC on the standard streams, until its client or a signal ends it."""

from pathlib import Path
from typing import Final
from uuid import uuid4

import attrs

from warren.transport.cli.options import Options
from warren.transport.cli.peer import Peer, serve_peer
from warren.transport.contracts import dialect_of
from warren.transport.stdio_server import StdioConfig, serve_stdio

REALMS: Final = "realms"


@attrs.frozen
class Realm:
    """Which of the stores to use, in the words of rkat-rpc.

    Attributes:
        name: sessions of one name do not see those of another; None is the store itself.
        isolated: use a store that nobody else has.
        root: the folder of all stores, instead of the usual one.
    """

    name: str | None = None
    isolated: bool = False
    root: Path | None = None

    def apply(self, options: Options) -> Options:
        """Return the options with the store that is meant; an isolated one without a root is kept in memory."""
        root = self.root or options.store
        named = options.store_named or self.root is not None
        if self.isolated:
            folder = None if self.root is None else self.root / REALMS / uuid4().hex
        else:
            folder = root if root is None or self.name is None else root / REALMS / self.name
        return attrs.evolve(options, store=folder, store_named=named)


def rpc(options: Options, realm: Realm, contract: str | None) -> None:
    """Run `warren rpc`. Ends and raises as `serve_peer`."""
    serve_peer(realm.apply(options), lambda peer: _serve(peer, contract))


async def _serve(peer: Peer, contract: str | None) -> None:
    stdio = StdioConfig(linger=peer.config.limits.drain, runtime=peer.config)
    streams, dialect = (peer.incoming, peer.outgoing), dialect_of(contract)
    await serve_stdio(peer.service, stdio, streams, dialect, peer.stop, end_turns=peer.service.stop)
