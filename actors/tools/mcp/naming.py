"""Names of the servers' tools for the model: unique, and in characters that providers accept."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Final

from warren.models.tools import marked_name

LONGEST: Final = 64
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


def names(offers: Sequence[tuple[str, str]], taken: Collection[str] = ()) -> list[str]:
    """Return a name for each (server, tool); all are different, and none is taken.

    It is the tool's own name, or `server_tool` if several tools have that name. The same offers get the same names.
    """
    own = [_fit(tool) for _, tool in offers]
    count = Counter(own)
    used = {*taken}
    found = []
    for (server, tool), name in zip(offers, own, strict=True):
        clear = count[name] == 1 and name not in used
        found.append(_unused(name if clear else _fit(f"{server}_{tool}"), (server, tool), used))
        used.add(found[-1])
    return found


def origin(name: str, offers: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the server and its own name of a tool with a name that `names` has given; None if it is of none."""
    of_both = (offer for offer in offers if _fit(f"{offer[0]}_{offer[1]}") == name)
    return next(chain(of_both, (offer for offer in offers if _fit(offer[1]) == name)), None)


def _fit(name: str) -> str:
    fitting = _UNFIT.sub("_", name)
    return fitting if 0 < len(fitting) <= LONGEST else marked_name(fitting, name, LONGEST)


def _unused(name: str, offer: tuple[str, str], used: Collection[str]) -> str:
    """Return the name, with a suffix if it is in use: for servers of one name, or tools that differ in `.` and `/`."""
    salt = 0
    candidate = name
    while candidate in used:
        candidate = marked_name(name, f"{salt}\n{offer[0]}\n{offer[1]}", LONGEST)
        salt += 1
    return candidate
