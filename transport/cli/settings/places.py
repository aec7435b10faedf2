"""The place of a bad setting in its file, and the name that the user may have meant."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from warren.base.errors import InvalidParamsError

ROOT: Final = "$.config."
UNKNOWN: Final = "is not a known field"


def placed(error: InvalidParamsError, file: str, text: str, known: Collection[str]) -> InvalidParamsError:
    """Return the error of a setting with its file and line, and for an unknown one the name of a known one.

    Args:
        error: the error, whose path begins with `$.config.`.
        file: the name of the file.
        text: its content, which is TOML.
        known: the names of all settings, tables with a dot.
    """
    path = str(error.details.get("path", ""))
    keys = tuple(_keys(tomllib.loads(text), path.removeprefix(ROOT)))
    line = _line_of(text, keys) if keys else None
    place = file if line is None else f"{file}:{line}"
    meant = suggestion(".".join(keys), known) if error.message.endswith(UNKNOWN) else ""
    return InvalidParamsError(f"{error.message}{meant} ({place})", path=path)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence on an unknown name: the same name in another table, or the nearest one; "" if none.

    The names of tables count, too.
    """
    tables = {each.rpartition(".")[0] for each in known} - {""}
    leaf = name.rpartition(".")[2]
    elsewhere = [each for each in sorted(known) if each.rpartition(".")[2] == leaf]
    found = elsewhere or get_close_matches(name, sorted({*known, *tables}), n=1)
    return f"; did you mean {' or '.join(f'`{each}`' for each in found)}?" if found else ""


def _keys(data: Any, path: str) -> Iterator[str]:
    """Yield the keys of a path in the data of a file: keys may have dots themselves, and lists have no keys."""
    fitting = (
        [key for key in data if path == key or path.startswith((f"{key}.", f"{key}["))]
        if isinstance(data, Mapping)
        else []
    )
    if fitting:
        key = max(fitting, key=len)
        yield key
        yield from _keys(data[key], path[len(key) :].removeprefix("."))


def _line_of(text: str, keys: Collection[str]) -> int | None:
    """Return the number of the line where a setting begins: the parser tells no places, so it reads ever more lines."""
    lines, begun = text.split("\n"), 0
    for number in range(1, len(lines) + 1):
        try:
            data: Any = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:  # within a value of several lines
            continue
        for key in keys:
            data = data.get(key) if isinstance(data, Mapping) else None
        if data is not None:
            return begun + 1
        begun = number
    return None
