"""The homes of a memory: each test with a `place` holds for all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.memory.samples import Place
from tests.support.postgres import database, database_with_vectors


@pytest.fixture(params=["files", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Place]:
    """A new place for a memory: a folder, or the address of a database. Words alone decide there."""
    if request.param == "files":
        yield tmp_path
        return
    with database() as url:
        yield url


@pytest.fixture(params=["files", "postgres"])
def vector_place(request: Any, tmp_path: Path) -> Iterator[Place]:
    """A new place for a memory that can have vectors."""
    if request.param == "files":
        yield tmp_path
        return
    with database_with_vectors() as url:
        yield url
