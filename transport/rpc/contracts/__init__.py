"""Protocols of other servers, for the clients of those: each is a dialect, and the runtime does not know of any.

May import `warren.transport.rpc`, and everything that package may import.
"""

from typing import Final

from warren.transport.rpc.dialect import Dialect, Native

AS_CLIENT_SAYS: Final = "client"
"""The value of `--contract` that leaves the version to the client, which names it in `initialize`."""


def dialect_of(contract: str | None) -> Dialect:
    """Return the protocol of a new connection.

    Args:
        contract: a version of Meerkat's protocol, or `AS_CLIENT_SAYS` for the version that the client names, or for the
            newest one if it names none. None stands for Warren's own protocol.

    Raises:
        InvalidParamsError: if the version is not supported.
    """
    if contract is None:
        return Native()
    # Not at the top: few programs ask for a contract, and its classes are an eighth of those of `warren rpc`.
    from warren.transport.rpc.contracts.meerkat.dialect import Meerkat  # noqa: PLC0415
    from warren.transport.rpc.contracts.meerkat.versions import NEWEST, version_of  # noqa: PLC0415

    if contract == AS_CLIENT_SAYS:
        return Meerkat(NEWEST, pinned=False)
    return Meerkat(version_of(contract, "$.contract"))
