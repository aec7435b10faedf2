"""Which session a user means."""

import pytest

from tests.support.fake_service import FakeService, FakeSession, sessions_of
from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.transport.cli.ids import PAGE, resolve

ONE = "0198a000-0000-7000-8000-0000000001ab"
TWO = "0198a000-0000-7000-8000-0000000002ab"
RETIRED = "0198a000-0000-7000-8000-00000000dead"


def service() -> FakeService:
    """Return a service with two sessions and an archived one, which is the newest."""
    return FakeService(sessions={**sessions_of(TWO, ONE), **retired()})


def retired() -> dict[str, FakeSession]:
    """Return an archived session."""
    return {RETIRED: FakeSession(RETIRED, lifecycle="archived")}


@pytest.mark.parametrize(
    ("name", "found"),
    [("last", ONE), ("LAST", ONE), ("1ab", ONE), (" 2AB ", TWO), (ONE, ONE), ("0000000002ab", TWO), ("dead", RETIRED)],
)
async def test_names_of_sessions(name: str, found: str) -> None:
    """A session is found by its id, by an end of it in any case, and as the last one used."""
    assert await resolve(service(), name) == found


async def test_a_whole_id_is_not_looked_up() -> None:
    """A whole id costs no list, known or not: what it stands for is the operation's question."""
    fake = service()
    unknown = "0198a000-ffff-7000-8000-0000000000ff"
    assert await resolve(fake, unknown) == unknown
    assert fake.called("list") == []


async def test_an_ambiguous_end_lists_the_candidates() -> None:
    """A prefix that fits several sessions fits none, and the error says which."""
    with pytest.raises(InvalidParamsError, match="fits 2 sessions") as caught:
        await resolve(service(), "ab")
    assert caught.value.path == "$.session_id"
    assert ONE in caught.value.message
    assert TWO in caught.value.message


async def test_many_candidates_are_cut() -> None:
    """The list of candidates stays readable; sessions beyond the first page count."""
    many = sessions_of(*(f"{number:08x}-0000-7000-8000-000000000abc" for number in range(PAGE + 5)))
    with pytest.raises(InvalidParamsError, match=r"fits 205 sessions: .*, and 195 more$"):
        await resolve(FakeService(sessions=many), "abc")


@pytest.mark.parametrize("name", ["", "  "])
async def test_no_name_is_no_session(name: str) -> None:
    """An empty name does not fit every session."""
    with pytest.raises(InvalidParamsError, match="must not be empty"):
        await resolve(service(), name)


@pytest.mark.parametrize("name", ["xyz", "0198a000", "a\n%"])
async def test_what_no_id_ends_with(name: str) -> None:
    """An id's beginning, which many share, is no name; the error shows what was looked for."""
    with pytest.raises(SessionNotFoundError) as caught:
        await resolve(service(), name)
    assert repr(name) in caught.value.message


async def test_there_is_no_last_session_at_first() -> None:
    """`last` in an empty store, or one with nothing but retired sessions, says so."""
    with pytest.raises(SessionNotFoundError, match="no session yet"):
        await resolve(FakeService(sessions=retired()), "last")
