"""The files of the console: complete, as they were vendored, small, and served with a strict policy."""

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from tests.support.fake_service import FakeService
from tests.transport.rest.clients import rest
from warren.transport.console.pages import POLICY

STATIC: Final = Path(__file__).resolve().parents[3] / "transport" / "console" / "static"
MOST: Final = 80 * 1024
PRELOAD: Final = re.compile(r'(?:src|href)="([^"]+)"')
CHARTS: Final = ("vendor/uplot.js", "vendor/uplot.css")
"""The files that only the screen of the load needs: it asks for them when it is opened."""
SCREENS: Final = ("create", "health", "load", "memory", "session")
"""The modules that the page loads later."""
MOST_OF_FIRST: Final = 40 * 1024
MOST_OF_CHARTS: Final = 25 * 1024
STATICALLY: Final = re.compile(r'(?:from|import) "(\./[^"]+)"')
IMPORT: Final = re.compile(r'(?:from |import |import\()"(\./[^"]+)"')


def files() -> list[Path]:
    """Return all files that are served."""
    return [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html", ".svg"}]


def test_libraries_are_as_they_were_vendored() -> None:
    """Each vendored file has the hash that was written down when it was made, and there is no other file."""
    vendored: dict[str, Any] = json.loads((STATIC / "vendor" / "versions.json").read_text())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").glob("*.[jc]s*")
        if path.suffix != ".json"
    }
    assert found == {name: each["sha256"] for name, each in vendored.items()}


def test_libraries_are_those_of_the_lock() -> None:
    """The versions and hashes of the packages are those that `npm ci` checks."""
    lock = json.loads((STATIC.parent / "vendoring" / "package-lock.json").read_text())["packages"]
    for each in json.loads((STATIC / "vendor" / "versions.json").read_text()).values():
        for name, package in each["packages"].items():
            assert {key: lock[f"node_modules/{name}"][key] for key in package} == package


def test_the_console_is_small() -> None:
    """Opening it at any screen loads at most 80 KB, and 40 at the list; the charts come with their screen alone."""
    sizes = {str(path.relative_to(STATIC)): len(gzip.compress(path.read_bytes())) for path in files()}
    charts = sum(size for name, size in sizes.items() if name in CHARTS)
    opened = max(sum(sizes[name] for name in _loaded(f"{screen}.js")) for screen in SCREENS)
    print(f"any screen: {opened / 1024:.1f} KB at most; charts: {charts / 1024:.1f} KB", sizes)  # noqa: T201 - asked for
    assert opened <= MOST
    first = _loaded()
    print(f"the list: {sum(sizes[name] for name in first) / 1024:.1f} KB", sorted(first))  # noqa: T201 - asked for
    assert sum(sizes[name] for name in first) <= MOST_OF_FIRST
    assert not first & {f"{name}.js" for name in ("health", "load", "memory", "session", "context", "vendor/marked")}
    static = {name for path in files() if path.suffix == ".js" for name in STATICALLY.findall(path.read_text("utf-8"))}
    assert not static & {f"./{name}" for name in CHARTS}
    assert charts <= MOST_OF_CHARTS


def _loaded(*screens: str) -> set[str]:
    """Return the files that the page loads at the list, and with the modules of other screens."""
    found, left = {"index.html"}, [*screens, *PRELOAD.findall((STATIC / "index.html").read_text("utf-8"))]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            if name.endswith(".js"):
                left += [each.removeprefix("./") for each in STATICALLY.findall((STATIC / name).read_text("utf-8"))]
    return found


def test_modules_import_files_that_are_there() -> None:
    """Each import of a module is the path of a file."""
    for path in files():
        if path.suffix == ".js":
            for name in IMPORT.findall(path.read_text(encoding="utf-8")):
                assert (path.parent / name).is_file(), f"{path.name} imports {name}"


async def test_files_come_with_the_policy() -> None:
    """The page and its modules come with a policy that lets nothing else run, compressed, and once for each version."""
    async with rest(FakeService()) as http:
        page = await http.get("/console/")
        module = await http.get("/console/app.js")
        again = await http.get("/console/app.js", headers={"If-None-Match": module.headers["etag"]})
    assert page.headers["content-security-policy"] == module.headers["content-security-policy"] == POLICY
    assert "'unsafe" not in POLICY
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert module.headers["content-encoding"] == "gzip"
    assert (module.text, again.status_code, again.content) == ((STATIC / "app.js").read_text(), 304, b"")


async def test_the_root_leads_a_browser_to_the_console() -> None:
    """Whoever accepts HTML is led to the console; for a program nothing is at `/`."""
    async with rest(FakeService()) as http:
        led = await http.get("/", headers={"Accept": "text/html,*/*"})
        short = await http.get("/console")
        program = await http.get("/")
        changed = await http.post("/console/")
    assert (
        (led.status_code, led.url.join(led.headers["location"]).path)
        == (short.status_code, short.url.join(short.headers["location"]).path)
        == (307, "/console/")
    )
    assert (program.status_code, changed.status_code) == (404, 405)


async def test_the_page_needs_no_token_and_the_sessions_do() -> None:
    """The files are the same for everybody; a gateway with a token serves nothing else without it."""
    async with rest(FakeService(), token="not-a-secret") as http:  # noqa: S106 - of a test
        assert [(await http.get(path)).status_code for path in ("/console/", "/sessions")] == [200, 401]


async def test_the_console_can_be_left_out() -> None:
    """Without the console its paths are as unknown as any other."""
    async with rest(FakeService(), console=False) as http:
        answers = [
            await http.get(path, headers={"Accept": "text/html"}) for path in ("/", "/console/", "/console/app.js")
        ]
    assert [each.status_code for each in answers] == [404, 404, 404]
