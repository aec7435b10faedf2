"""Protocols of other servers, for their own clients: a translation at the edge, the runtime knows nothing of it.

May import what `warren.transport.rpc` may.
"""

from typing import Final

from warren.transport.rpc.contracts.meerkat import Meerkat
from warren.transport.rpc.contracts.meerkat_versions import NEWEST, version_of
from warren.transport.rpc.dialect import Dialect, Native

AS_CLIENT_SAYS: Final = "client"
"""The contract whose version the client names in `initialize`."""


def dialect_of(contract: str | None) -> Dialect:
    """Return the protocol of a new connection: Meerkat's of a version, our own for None.

    `AS_CLIENT_SAYS` takes the version from the client, the newest one if it names none. Raises InvalidParamsError for
    a version that is not spoken here.
    """
    if contract is None:
        return Native()
    if contract == AS_CLIENT_SAYS:
        return Meerkat(NEWEST, pinned=False)
    return Meerkat(version_of(contract, "$.contract"))
