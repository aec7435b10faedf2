"""Writes the table of `docs/tools.md` about the rules that servers have for tools. `make docs` runs it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.parts import with_part
from warren.transport.providers.tool_rules import BY_PROTOCOL

BEGIN: Final = "<!-- made from the rules in transport/providers/tool_rules.py by `make docs` -->\n"
END: Final = "<!-- the end of what is made from the rules -->\n"


def renewed(page: str) -> str:
    """Return the page with the table as the rules are now."""
    return with_part(page, BEGIN, END, ["\n", *_rows(), "\n"])


def _rows() -> Iterator[str]:
    yield "| protocol | rule | source | date |\n|---|---|---|---|\n"
    for protocol, rules in BY_PROTOCOL.items():
        for each in rules.sources:
            yield f"| {protocol} | {each.rule} | {each.place} | {each.date} |\n"


if __name__ == "__main__":
    PAGE: Final = Path(sys.argv[1])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
