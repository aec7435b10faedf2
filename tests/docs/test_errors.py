"""`docs/errors.md` against the one table of errors."""

import re
from collections.abc import Iterable
from typing import Final

from tests.conftest import ROOT
from tests.docs.snippets import DOCS
from warren.errors import NUMBERS, AgentError

PAGE: Final = (DOCS / "errors.md").read_text(encoding="utf-8")
SOURCES: Final = ("actors", "mailbox", "storage", "transport", "src/warren")


def rows(heading: str) -> Iterable[list[str]]:
    """Return the rows of the table under a heading, without the head."""
    after = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in after.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells[2:]]


def test_every_code_has_its_numbers() -> None:
    """In the order of the code, with each surface's number and something to do."""
    told = {row[0].strip("`"): row[1:5] for row in rows("Codes")}
    assert told == {
        code.value: [str(found) if found is not None else "" for found in (one.jsonrpc, one.http, one.exit, one.acp)]
        for code, one in NUMBERS.items()
    }
    assert list(told) == [code.value for code in NUMBERS]
    assert all(row[5].endswith((".", "below.")) for row in rows("Codes"))


def test_every_cause_is_one() -> None:
    """Each cause on the page is given by the code somewhere, under a code that is in the table."""
    source = "".join(path.read_text(encoding="utf-8") for name in SOURCES for path in (ROOT / name).rglob("*.py"))
    for code, cause, _ in rows("Causes"):
        assert code.strip("`") in {found.value for found in NUMBERS}
        assert re.search(rf"\"{cause.strip('`')}\"", source), cause


def test_a_cancelled_turn_has_numbers_of_its_own() -> None:
    """As the page says: a conflict over HTTP, no error over ACP."""
    numbers = AgentError("interrupted", cause="cancelled").numbers
    assert (numbers.http, numbers.acp) == (409, None)


def test_the_members_of_the_body() -> None:
    """The page explains what a body has, and nothing else."""
    body = AgentError("interrupted", session_id="s", cause="cancelled").body()
    assert {row[0].strip("`") for row in rows("The body")} == set(body)
