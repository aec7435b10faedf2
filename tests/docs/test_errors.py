"""`docs/errors.md` against the table of errors and the causes of their classes."""

from collections.abc import Iterable
from typing import Final, get_args, get_type_hints

from tests.docs.snippets import DOCS
from warren.base.errors import NUMBERS, AgentError, ProviderError, WarrenError

PAGE: Final = (DOCS / "errors.md").read_text(encoding="utf-8")


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


def test_every_cause_is_explained() -> None:
    """The page has each cause of each class, in the order of the codes, with a sentence, and no other."""
    explained = [tuple(cell.strip("`") for cell in row[:2]) for row in rows("Causes")]
    assert explained == [
        (code.value, cause) for code in NUMBERS for cls in classes() if cls.code is code for cause in causes_of(cls)
    ]
    assert all(row[2].endswith(".") for row in rows("Causes"))


def test_the_causes_that_take_an_exchange_out() -> None:
    """The page lists the causes of a refused prompt."""
    assert {row[0].strip("`") for row in rows("Prompts that a provider refuses")} == ProviderError.refusals


def classes() -> list[type[WarrenError]]:
    """Return the error classes with a code of their own."""
    return [cls for cls in WarrenError.__subclasses__() if cls.__module__ == WarrenError.__module__]


def causes_of(cls: type[WarrenError]) -> list[str]:
    """Return the causes that the class's annotation lists; a class without causes has the base's plain string."""
    literal = get_args(get_type_hints(cls)["cause"])[0]
    return list(get_args(literal))


def test_a_cancelled_turn_has_numbers_of_its_own() -> None:
    """As the page says: a conflict over HTTP, no error over ACP."""
    numbers = AgentError("interrupted", cause="cancelled").numbers
    assert (numbers.http, numbers.acp) == (409, None)


def test_the_members_of_the_body() -> None:
    """The page explains what a body has, and nothing else."""
    body = AgentError("interrupted", session_id="s", cause="cancelled").body()
    assert {row[0].strip("`") for row in rows("The body")} == set(body)
