"""The table of `docs/models.md` about refused requests is that of the rules."""

from pathlib import Path
from typing import Final

from tests.docs import repairs_page

PAGE: Final = Path(__file__).parents[2].joinpath("docs/models.md").read_text(encoding="utf-8")


def test_the_table_of_the_rules() -> None:
    """`make docs` has renewed it since the last change of a rule."""
    assert repairs_page.renewed(PAGE) == PAGE
