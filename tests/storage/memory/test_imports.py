"""The modules that a memory imports, seen in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = """
import sys, trio
from datetime import UTC, datetime
from pathlib import Path
from warren.conversation.memory import MemoryConfig, MemoryEntry
from warren.storage.memory import FileMemory

async def main():
    memory = await FileMemory.open(MemoryConfig(Path(sys.argv[1]), sys.argv[2]))
    await memory.search("nothing yet")
    print("usearch" in sys.modules)
    await memory.index([MemoryEntry("a", 0, 1, "the doors are blue", datetime.now(UTC))])
    assert await memory.search("blue doors")
    await memory.catch_up()
    await memory.aclose()
    print("usearch" in sys.modules)

trio.run(main)
"""


@pytest.mark.parametrize(("embedder", "loaded"), [("bm25", "False\nFalse\n"), ("bag-of-words", "False\nTrue\n")])
def test_usearch_is_imported_with_the_first_vector(tmp_path: Path, embedder: str, loaded: str) -> None:
    """A memory of words alone never imports USearch, and one with vectors does once it has one."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path), embedder]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == loaded
