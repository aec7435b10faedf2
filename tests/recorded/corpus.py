"""Recorded answers of real model servers, from public repositories; see README.md."""

import json
import lzma
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import attrs

Protocol = Literal["anthropic", "gemini", "openai-chat", "openai-responses"]
FOLDER: Final = Path(__file__).parent
ARCHIVE: Final = FOLDER / "recordings.jsonl.xz"
INDEX: Final = FOLDER / "INDEX.toml"


@attrs.frozen
class Recording:
    """An answer of a server.

    Attributes:
        name: the source, the path of the file there, and the place in it.
        protocol: the protocol.
        model: the model that gave it, as far as it says so.
        status: the status.
        kind: the content type.
        headers: the headers that say when to try again.
        body: the body.
    """

    name: str
    protocol: Protocol
    model: str
    status: int
    kind: str
    headers: dict[str, str]
    body: str


@lru_cache
def recordings() -> dict[str, Recording]:
    """Return all recordings by their names."""
    lines = lzma.decompress(ARCHIVE.read_bytes()).decode().split("\n")
    return {each.name: each for each in (Recording(*json.loads(line)) for line in lines)}
