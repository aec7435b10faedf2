"""Docstrings as data: the sentences about classes and their fields, for pages, schemas and help."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Final

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def summary_of(cls: type) -> str:
    """Return the first sentence of a class's docstring."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


@cache
def attributes_of(cls: type) -> Mapping[str, str]:
    """Return the sentences about the attributes of a class and its bases, by name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        _, _, listed = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        found |= {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(listed)}
    return found
