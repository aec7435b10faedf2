"""The table of `docs/tools.md` about the rules of servers is that of the rules."""

from tests.docs import tool_rules_page
from tests.docs.snippets import DOCS


def test_the_page_has_the_rules() -> None:
    """The table is as `make docs` writes it now."""
    page = (DOCS / "tools.md").read_text(encoding="utf-8")
    assert tool_rules_page.renewed(page) == page
