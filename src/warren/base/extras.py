"""The extras of the package: the modules that each brings, and the message for one that is not installed. No I/O."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "azure": ("azure.identity",),
    "bedrock": ("botocore",),
    "cli": ("click", "rich"),
    "client": ("anyio", "wsproto"),
    "gateway": ("trio_websocket", "starlette"),
    "jwt": ("jwt", "cryptography"),
    "load": ("hdrh", "anyio", "wsproto"),
    "local-embedder": ("fastembed", "loguru"),
    "mcp": ("mcp",),
    "memory-store": ("apsw", "numpy", "Stemmer", "usearch"),
    "metrics": ("prometheus_client",),
    "postgres": ("psycopg",),
    "session-store": ("apsw",),
    "skills": ("yaml",),
    "tools": ("re2",),
    "traces": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "vertex": ("google.auth", "requests"),
}
"""Modules by which an extra is known to be installed."""


def installed(extra: str) -> bool:
    """Return whether the modules of an extra can be imported."""
    return lacking(extra) is None


def lacking(extra: str) -> str | None:
    """Return the first module of an extra that cannot be imported; None if all can."""
    return next((name for name in MODULES[extra] if not _there(name)), None)


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def missing(extra: str, needed_by: str) -> str | None:
    """Return the message for an extra that is not installed, None for one that is.

    Args:
        extra: its name in `pyproject.toml`.
        needed_by: the beginning of the message, with its verb, as in "warren serve needs".
    """
    return None if installed(extra) else f"{needed_by} the extra `{extra}`: {cure(extra)}"


def cure(extra: str) -> str:
    """Return the command that installs an extra; no index is asked for Warren itself, which is installed."""
    return f"pip install 'warren[{extra}]'"


def lack(extra: str) -> dict[str, str]:
    """Return the details of an error about an extra that is not installed: its name, and advice."""
    return {"extra": extra, "hint": cure(extra)}
