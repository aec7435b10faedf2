"""`docs/settings.md` against the options and classes it is made from."""

from tests.docs.settings_page import rows, settings_page
from tests.docs.snippets import DOCS
from warren.transport.cli.settings.show import FILE_ORDER


def test_the_page_is_made_from_the_code() -> None:
    """Whoever changes a setting runs `make docs`."""
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == settings_page()


def test_every_setting_has_a_variable_and_is_explained() -> None:
    """No setting of the file can be set there alone, and none is without a sentence about it."""
    found = {row.name: row for row in rows() if row.name}
    assert list(found) == list(FILE_ORDER)
    assert [name for name, row in found.items() if not (row.variable and row.about and row.default)] == []
    assert len({row.variable for row in found.values()}) == len(found)
