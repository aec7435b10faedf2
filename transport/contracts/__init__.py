"""Protocols of other servers, for their own clients: a translation at the edge, the runtime knows nothing of it."""

import re
from typing import Final

from warren.errors import InvalidParamsError
from warren.transport.contracts.meerkat import Meerkat
from warren.transport.dialect import Dialect, Native

OLDEST: Final = (0, 6, 0)
NEWEST: Final = (0, 8, 999)
VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.ASCII)


def dialect_of(contract: str | None) -> Dialect:
    """Return the protocol of a new connection: Meerkat's of a version, our own for None.

    Raises InvalidParamsError for a version that is none, or that nobody has tried.
    """
    if contract is None:
        return Native()
    found = VERSION.fullmatch(contract)
    if found is None:
        raise _bad(f"{contract!r} is not a version, such as 0.6 or 0.6.34")
    version = (int(found[1]), int(found[2]), int(found[3] or 0))
    if not OLDEST <= version <= NEWEST:
        raise _bad(f"{contract} is not known; there are 0.6 to 0.8")
    return Meerkat(version)


def _bad(problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"$.contract: {problem}", path="$.contract")
