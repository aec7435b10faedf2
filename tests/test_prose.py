"""The prose of docstrings is plain: it names its subject, and says "if" when it means a condition (CONTRIBUTING.md)."""

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.conftest import ROOT
from tests.support.layers import FOLDERS

PLAIN: Final = (
    "actors",
    "actors/session",
    "actors/supervisor",
    "actors/tools",
    "actors/turn",
    "mailbox",
    "src/warren",
    "storage",
    "transport",
    "transport/acp",
    "transport/cli",
    "transport/gateway",
    "transport/http",
    "transport/load",
    "transport/mcp",
    "transport/providers",
    "transport/rest",
    "transport/rpc",
    "transport/stdio",
)
"""The folders of the library: the whole, and those whose rate of clauses is measured alone."""
MOST_CLAUSES: Final = 3
"""Words "what" and "where" in 1,000 words of docstring."""
HIDES_ITS_SUBJECT: Final = re.compile(r"\b(what|where|who|whoever)\b", re.IGNORECASE)
BEGINNING: Final = re.compile(r"(?:\A|(?<=[.!?])\s+)(?:What|Who|Where)\b[^.?]*(?:[.]|\Z)")
"""A sentence that begins with a clause in place of its subject; a question may."""
CODE: Final = re.compile(r"`[^`]*`")


def docstrings(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring in a folder, those of fields and constants included."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if folder == "src/warren" and path.relative_to(ROOT / folder).parts[0] in FOLDERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", CODE.sub("x", node.value.value)


@pytest.mark.parametrize("folder", PLAIN)
def test_docstrings_name_their_subject(folder: str) -> None:
    """No first line of a docstring hides its subject behind a clause, and such clauses are rare in the rest."""
    found = list(docstrings(folder))
    hidden = [f"{place}: {text}" for place, text in found if HIDES_ITS_SUBJECT.search(text.partition("\n")[0])]
    words = [word.lower() for _, text in found for word in re.findall(r"[A-Za-z']+", text)]
    assert hidden == []
    assert len(words) > 100
    assert 1000 * (words.count("what") + words.count("where")) <= MOST_CLAUSES * len(words)


@pytest.mark.parametrize("folder", [*FOLDERS, "src/warren", "tests", "benchmarks"])
def test_sentences_begin_with_their_subject(folder: str) -> None:
    """No sentence of a docstring begins with What, Who or Where, in tests as well."""
    assert [f"{place}: {text}" for place, text in docstrings(folder) if BEGINNING.search(text)] == []
