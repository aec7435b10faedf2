"""The table of `docs/models.md` that says which refusals are repaired, made from the rules themselves.

`python -m tests.docs.repairs_page docs/models.md` renews it in place.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.parts import with_part
from warren.transport.providers.repair import RULES

BEGIN: Final = "<!-- made from the rules in transport/providers/repair.py by `make docs` -->\n"
END: Final = "<!-- the end of what is made from the rules -->\n"


def renewed(page: str) -> str:
    """Return the page with the table of the rules."""
    return with_part(page, BEGIN, END, ["\n", *_rows(), "\n"])


def _rows() -> Iterator[str]:
    yield "| refused, and repaired | servers | source |\n|---|---|---|\n"
    for rule in RULES:
        links = [f"[{_short(each)}](https://{each})" for each in rule.source.split(", ") if each]
        sources = ", ".join(links) or "none found"
        yield f"| {rule.about} | {rule.servers} | {sources}, {rule.date} |\n"


def _short(source: str) -> str:
    """Return a source as people name it, such as `openai/codex#8145`."""
    _, owner, name, *rest = source.split("/")
    return f"{owner}/{name}#{rest[-1]}" if rest[0] in ("issues", "pull") else f"{owner}/{name}"


if __name__ == "__main__":
    PAGE: Final = Path(sys.argv[1])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
