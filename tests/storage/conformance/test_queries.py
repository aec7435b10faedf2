"""The table of queries of each home: one function for each kind, and an answer of the type that the query promises."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

from tests.storage.conformance.homes import Home, done
from tests.storage.samples import turn
from warren.base.nodes import Node
from warren.conversation.records import SessionRecord
from warren.storage.ephemeral.queries import QUERIES as EPHEMERAL
from warren.storage.postgres.queries import QUERIES as POSTGRES
from warren.storage.queries import ANY_TENANT, LivingNodes, OfSession, Query, SessionList, SessionRow
from warren.storage.results import Rows
from warren.storage.sqlite.queries import QUERIES as SQLITE


def kinds(of: type[Query[Any]]) -> set[type[Query[Any]]]:
    """Return the kinds of queries below one class."""
    below = set(of.__subclasses__())
    return below.union(*map(kinds, below)) - {OfSession}


def test_every_home_has_a_function_for_every_kind() -> None:
    """None is missing, and none is left of a kind that is gone."""
    expected = kinds(Query)
    assert SessionRow in expected
    for table in (EPHEMERAL, SQLITE, POSTGRES):
        assert set(table) == expected


async def test_an_answer_has_the_type_of_its_query(home: Home, tmp_path: Path) -> None:
    """The type checkers infer it from the query alone."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        row = assert_type(await store.read(SessionRow("a", ANY_TENANT)), SessionRecord | None)
        assert row == turn("a").record
        assert assert_type(await store.read(SessionList("default")), Rows[SessionRecord]) == [row]
        assert isinstance(assert_type(await store.read(LivingNodes()), Sequence[Node])[0], Node)
