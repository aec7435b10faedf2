"""The results of a run: JSON and back, a page that needs nothing else, and the comparison of two runs."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.transport.console.stage import browser
from tests.transport.load.results import BROKEN, made
from warren.base.errors import InvalidParamsError
from warren.transport.load.diff import compare, regressions, unlike
from warren.transport.load.page import charts, render
from warren.transport.load.result import read_result, to_json


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    """With violations and all."""
    file = tmp_path / "result.json"
    file.write_bytes(to_json(BROKEN))
    assert read_result(file) == BROKEN


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "series": []}', b"\xff"])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: bytes) -> None:
    """By its name, with one line."""
    file = tmp_path / "other.json"
    file.write_bytes(content)
    with pytest.raises(InvalidParamsError, match=r"other.json is no result"):
        read_result(file)
    with pytest.raises(InvalidParamsError, match="No such file"):
        read_result(tmp_path / "nothing.json")


class Links(HTMLParser):
    """Collects everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fetched = tag in {"link", "img", "iframe", "object"}
        self.found += [tag] if fetched else [str(value) for name, value in attrs if name in {"src", "href"}]


def test_the_page_needs_no_network() -> None:
    """Nothing in it is fetched, and every chart is in it."""
    page, links = render(made()), Links()
    links.feed(page)
    assert links.found == []
    assert "http" not in re.sub(r"https?://\S*localhost\S*|http-equiv", "", page)
    assert page.count("<figure>") == len(charts(made()))
    assert "every promise was kept" in page


def test_the_page_names_what_was_not_kept() -> None:
    """The session, the rule, the errors, the warning; what they say is no markup."""
    page = render(BROKEN)
    assert "1 violations: promises were NOT kept" in page
    assert "<td>session-&lt;7&gt;</td><td>order</td>" in page
    assert "<td>AGENT_ERROR</td><td>3</td>" in page
    assert "the tester was late itself" in page


def test_a_run_without_anything_can_be_shown() -> None:
    """No latency, no second."""
    page = render(made(latency=(), series=(), figures={}))
    assert "nan" not in page.lower()


INK: Final = """figures => figures.map(figure => {
  const canvas = figure.querySelector("canvas"), colours = [[0x2f, 0x6d, 0xb5], [0xc8, 0x55, 0x3d]];
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    found += colours.some((colour) => colour.every((part, index) => data[at + index] === part));
  }
  return found;
})"""
"""How many pixels of each chart have the colour of a line."""


@pytest.mark.parametrize("seconds", [1, 3])
def test_the_charts_in_a_browser(tmp_path: Path, seconds: int) -> None:
    """Each has ink of its lines, also after a run of one second, and the page has no error."""
    file, errors = tmp_path / "report.html", list[str]()
    file.write_text(render(made(series=made().series[:seconds])), encoding="utf-8")
    with browser() as chromium:
        page = chromium.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(file.as_uri())
        expect(page.locator("figure canvas")).to_have_count(len(charts(made())))
        ink = page.eval_on_selector_all("figure", INK)
    assert errors == []
    assert all(each > 10 for each in ink), ink


def test_what_got_worse_is_found() -> None:
    """Slower turns and fewer of them are worse; faster ones and single moments are not judged."""
    before, after = made(), made(figures={"latency p99": 30.0, "latency p50": 5.0, "turns/s": 60.0, "errors": 1.0})
    changes = compare(before, after)
    assert {change.name: change.ratio for change in changes}["latency p99"] == 1.5
    assert [change.name for change in regressions(changes, 20)] == ["turns/s", "latency p99", "errors"]
    assert [change.name for change in regressions(changes, 45)] == ["latency p99", "errors"]
    assert regressions(compare(before, before), 0) == []
    single = compare(made(figures={"latency p100": 1.0}), made(figures={"latency p100": 9.0}))
    assert regressions(single, 0) == []


def test_a_figure_that_only_one_run_has_is_shown() -> None:
    """And is no regression."""
    changes = compare(made(), made(figures={"refusal p99": 3.0}))
    assert [(change.before, change.after, change.ratio) for change in changes if change.name == "refusal p99"] == [
        (0, 3, None)
    ]
    assert regressions(changes, 0) == []


def test_broken_promises_are_a_regression() -> None:
    """However fast the run was."""
    changes = compare(made(), BROKEN)
    assert "violations" in [change.name for change in regressions(changes, 1_000)]


def test_plans_that_differ_are_told_of() -> None:
    """And machines; the seed may differ."""
    plan = dict(made().plan)
    assert unlike(made(), made(plan=plan | {"seed": 9})) == []
    assert unlike(made(), made(plan=plan | {"sessions": 9, "seed": 9})) == ["sessions"]
    assert unlike(made(), made(machine={**made().machine, "processors": 64})) == ["processors"]
