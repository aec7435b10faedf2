"""The contents of a wheel with the extras that it was installed with, and its answers without the others."""

import importlib
import re
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest

import warren
from tests.builds.build import EXTRAS, IN_A_BUILD

pytestmark = pytest.mark.skipif(not IN_A_BUILD, reason="about a wheel: make builds")

REQUIREMENT: Final = re.compile(r"([A-Za-z0-9_.-]+)[^;]*(?:;.*extra == [\"']([a-z-]+)[\"'])?")
CLIENT: Final = "warren.client"
"""The name by which programs import the client, which has an extra of its own."""
MODULES: Final = {
    "PyJWT": "jwt",
    "PyStemmer": "Stemmer",
    "PyYAML": "yaml",
    "azure-identity": "azure",
    "google-auth": "google",
    "google-re2": "re2",
    "hdrhistogram": "hdrh",
    "mcp-types": "mcp_types",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "trio-websocket": "trio_websocket",
}
PACKAGE: Final = Path(str(warren.__file__)).parent
EXTRA_FREE: Final = ("warren.actors", "warren.mailbox", "warren.transport.providers", "warren.transport.embed")
TOOLS: Final = "warren.actors.tools."
"""Tools of the model need extras, but the modules that decide which tools there are do not."""
EXTRA_FREE_TOOLS: Final = (f"{TOOLS}session_tools", f"{TOOLS}workspace", f"{TOOLS}mcp.pool")


def brought() -> dict[str, set[str]]:
    """Return which extras bring each package; an empty name is the base install."""
    found: dict[str, set[str]] = {}
    for requirement in metadata.requires("warren") or []:
        match = REQUIREMENT.fullmatch(requirement)
        assert match, requirement
        found.setdefault(match[1], set()).add(match[2] or "")
    return {name: extras for name, extras in found.items() if name != "warren"}


def installed(package: str) -> bool:
    """Tell whether a package is there at all."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def left_out() -> set[str]:
    """Return the packages of extras that were not asked for, and that nothing else brought either."""
    return {name for name, extras in brought().items() if not extras & (EXTRAS | {""}) and not installed(name)}


def test_the_wheel_is_what_is_tested() -> None:
    """The modules come from the environment, not from the tree that the tests are in."""
    assert "site-packages" in PACKAGE.parts


def test_what_was_asked_for_is_there() -> None:
    """Each extra brings its packages."""
    assert {name for name, extras in brought().items() if extras & (EXTRAS | {""}) and not installed(name)} == set()


def test_nothing_heavy_is_there_unasked() -> None:
    """Neither engine nor server nor terminal comes with a build that is to do without."""
    heavy = {
        "apsw",
        "usearch",
        "numpy",
        "psycopg",
        "fastembed",
        "PyStemmer",
        "click",
        "rich",
        "mcp",
        "google-re2",
    }
    unasked = {name for name in heavy if not brought()[name] & EXTRAS}
    assert {name for name in unasked if installed(name)} == set()


def test_each_module_imports_or_names_the_package_it_lacks() -> None:
    """A module that cannot be imported lacks a package of an extra that was not asked for; the core lacks none."""
    absent = {MODULES.get(name, name) for name in left_out()}
    lacking: dict[str, str | None] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(["warren", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as exc:
            lacking[name] = (exc.name or "").partition(".")[0]
    assert {name: package for name, package in lacking.items() if package not in absent} == {}
    core = {f"warren.{path.stem}" for path in PACKAGE.glob("*.py")} - {CLIENT}
    core |= {name for name in lacking if name.startswith(EXTRA_FREE) and not name.startswith(TOOLS)}
    assert [name for name in lacking if name in core or name.startswith(EXTRA_FREE_TOOLS)] == []
