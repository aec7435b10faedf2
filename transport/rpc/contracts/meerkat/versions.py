"""The versions of Meerkat's protocol: the supported lines, and the names that clients give them."""

import re
from collections.abc import Mapping
from typing import Any, Final

from warren.base.errors import InvalidParamsError

Version = tuple[int, int, int]

LINES: Final[Mapping[int, Version]] = {
    4: (0, 4, 13),
    5: (0, 5, 2),
    6: (0, 6, 34),
    7: (0, 7, 31),
    8: (0, 8, 52),
    9: (0, 9, 6),
}
"""The newest tried release of each line, by its minor number: `0.8` means 0.8.52."""
NEWEST: Final = LINES[max(LINES)]
_FORM: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.ASCII)
_NAME: Final = "rkat"
"""Part of the names of Meerkat's own clients: `meerkat-sdk`, `@rkat/sdk`."""


def version_of(text: str, path: str) -> Version:
    """Return the version that a text names; one without a patch number is the newest of its line.

    Raises InvalidParamsError for `path` if the text is no version, or one of a line that is not supported.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidParamsError.at(path, f"{text[:20]!r} is not a version, such as 0.6 or 0.6.34")
    major, minor, patch = int(found[1]), int(found[2]), found[3]
    if major != 0 or minor not in LINES:
        raise InvalidParamsError.at(
            path, f"{text} is not supported; the supported ones are 0.{min(LINES)} to 0.{max(LINES)}"
        )
    return LINES[minor] if patch is None else (major, minor, int(patch))


def version_in(contract: str | None, client: Mapping[str, Any] | None) -> Version | None:
    """Return the version that a client names in `initialize`, None if it names none.

    A client names it as `contract_version`, at the top or in `client_info`; in one of Meerkat's own clients the
    version in `client_info` means the same. Raises InvalidParamsError as `version_of` does.
    """
    if contract is not None:
        return version_of(contract, "$.contract_version")
    info = client or {}
    keys = ["contract_version"]
    if _NAME in str(info.get("name", "")).lower():
        keys.append("version")
    for key in keys:
        if info.get(key) is not None:
            return version_of(str(info[key]), f"$.client_info.{key}")
    return None
