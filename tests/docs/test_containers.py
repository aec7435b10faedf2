"""The numbers of the page on containers."""

from typing import Final

from tests.docs.snippets import DOCS
from warren.base.end_budget import EndBudget
from warren.settings.config import Limits
from warren.transport.http.probes import PATHS

PAGE: Final = (DOCS / "containers.md").read_text(encoding="utf-8")


def test_the_phases_of_an_end() -> None:
    """The page has the times of the code, for the default and for that of Kubernetes."""
    assert Limits().drain == 10.0
    for name in ("turns", "interrupts", "connections", "files"):
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
        moments = [getattr(EndBudget(0.0, seconds), "last" if name == "files" else name) for seconds in (10.0, 30.0)]
        told = [float(cell.strip().removeprefix("up to ").removesuffix(" s")) for cell in line.split("|")[2:4]]
        assert told == [round(each, 3) for each in moments], line


def test_every_probe_is_told() -> None:
    """Each path has its line."""
    assert {path for path in PATHS if f"| `{path}` |" in PAGE} == PATHS
