"""The ledger of a store has all that its turns have used, once."""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import attrs
import pytest

from tests.storage.conformance.homes import Home, done
from tests.storage.samples import NOW, TEXTS, of_text, turn, updated, used
from warren.base.errors import StoreError
from warren.calls.sessions import ForkRequest
from warren.conversation.usage import Usage
from warren.reports.ledger import Charge, Figures
from warren.storage.operations import Commit, Delete, Fork, Lease
from warren.storage.queries import ANY_TENANT, KnownTenants, LedgerSums, TokensSince
from warren.storage.store import Store

ONE = Figures(1, 10, 5, 3, 2, priced=Decimal("0.0001"))
UNPRICED = Figures(1, 10, 5, 3, 2, 15)
HOUR = datetime.fromisoformat("2026-03-01T12:00:00Z")


def paid(session_id: str, payer: str, number: int = 0) -> Commit:
    """Return a turn whose tokens count for a payer."""
    commit = used(session_id, number)
    return attrs.evolve(commit, charges=tuple(attrs.evolve(each, payer=payer) for each in commit.charges))


async def fill(store: Store) -> None:
    """Store four turns of one tenant within two hours, in groups, and one of another tenant."""
    await store.write([used("a"), used("b", cost=None), used("other", tenant="other"), used("c")])
    await done(store, used("a", 1))


async def test_turns_are_summed_by_each_group(home: Home, tmp_path: Path) -> None:
    """Tokens without a price are told apart; a cost of which no part is known is none."""
    async with home(tmp_path) as store:
        await fill(store)
        assert await store.read(LedgerSums("default", "hour")) == {
            "2026-03-01T12:00:00Z": ONE + ONE + UNPRICED,
            "2026-03-01T13:00:00Z": ONE,
        }
        assert await store.read(LedgerSums("default", "day")) == {"2026-03-01": ONE + ONE + ONE + UNPRICED}
        models = await store.read(LedgerSums("default", "model"))
        assert models == {"echo": ONE + ONE + ONE, "free": UNPRICED}
        assert (models["echo"].cost, models["free"].cost) == (Decimal("0.0003"), None)
        assert await store.read(LedgerSums("other", "tenant")) == {"other": ONE}
        assert await store.read(LedgerSums(ANY_TENANT, "tenant")) == {
            "default": ONE + ONE + ONE + UNPRICED,
            "other": ONE,
        }
        assert await store.read(LedgerSums("nobody", "day")) == {}
        await done(store, updated(turn("idle"), tenant="quiet"))
        assert await store.read(KnownTenants()) == ["default", "other", "quiet"]


async def test_a_report_has_whole_hours(home: Home, tmp_path: Path) -> None:
    """The first hour counts, the last one does not; tokens are counted from the hour of a time on."""
    async with home(tmp_path) as store:
        await fill(store)
        later = HOUR + timedelta(hours=1)
        assert await store.read(LedgerSums("default", "model", since=later)) == {"echo": ONE}
        assert await store.read(LedgerSums("default", "model", HOUR, later)) == {"echo": ONE + ONE, "free": UNPRICED}
        assert await store.read(LedgerSums("default", "model", until=HOUR)) == {}
        tokens = [
            await store.read(TokensSince("default", each)) for each in (HOUR, later, later + timedelta(minutes=59))
        ]
        assert tokens == [60, 15, 15]
        assert await store.read(TokensSince("default", later + timedelta(hours=1))) == 0


async def test_tokens_of_a_payer(home: Home, tmp_path: Path) -> None:
    """They are told apart from the others of the tenant, in one group and in many, and summed with them in reports."""
    async with home(tmp_path) as store:
        await fill(store)
        await store.write([paid("p", "ci"), paid("q", "ci\0"), paid("r", "")])
        await done(store, paid("p", "ci", number=1))
        payers = {"ci": 30, "ci\0": 15, "": 75, "eve": 0}
        assert {each: await store.read(TokensSince("default", HOUR, each)) for each in payers} == payers
        assert await store.read(TokensSince("default", HOUR)) == 120
        assert await store.read(TokensSince("default", HOUR + timedelta(hours=1), "ci")) == 15
        assert await store.read(TokensSince("other", HOUR, "ci")) == 0
        assert (await store.read(LedgerSums("default", "model")))["echo"].turns == 7


async def test_sessions_and_labels_are_summed_as_they_are_stored(home: Home, tmp_path: Path) -> None:
    """Each session counts for each of its labels; one that is deleted is left out, and the ledger keeps its tokens."""
    async with home(tmp_path) as store:
        priced = Usage(10, 5, 2, 3, cost=Decimal("0.0001"))
        for name, labels, usage in (("a", {"team": "red", "x=": "\0"}, priced), ("b", {"team": "red"}, Usage(7, 1))):
            commit = turn(name, labels=labels)
            await done(store, updated(commit, usage=usage))
        await done(store, turn("plain"))
        of_b = Figures(1, 7, 1, 0, 0, 8)
        assert await store.read(LedgerSums("default", "label")) == {"team=red": ONE + of_b, "x==\0": ONE}
        assert await store.read(LedgerSums("default", "session")) == {"a": ONE, "b": of_b, "plain": Figures(1)}
        before = await store.read(LedgerSums("default", "model"))
        await done(store, Fork("fork", NOW, ForkRequest("a")))
        assert (await store.read(LedgerSums("default", "session")))["fork"].tokens == 0
        await done(store, Delete("a"))
        assert set(await store.read(LedgerSums("default", "session"))) == {"b", "plain", "fork"}
        assert await store.read(LedgerSums("default", "model")) == before
        assert await store.read(LedgerSums("other", "session")) == {}


async def test_a_turn_that_is_refused_is_not_in_the_ledger(home: Home, tmp_path: Path) -> None:
    """Neither one under an older lease nor one that comes a second time counts; the rest of its group does."""
    async with home(tmp_path) as store:
        await done(store, used("a"))
        fenced = attrs.evolve(used("a", 1), lease=Lease(9))
        outcomes = await store.write([fenced, used("b")])
        assert isinstance(outcomes[0], StoreError)
        with pytest.raises(StoreError):
            await done(store, used("a"))
        assert await store.read(LedgerSums(ANY_TENANT, "model")) == {"echo": ONE + ONE}


async def test_costs_are_exact_and_models_have_any_name(home: Home, tmp_path: Path) -> None:
    """Sums of prices with many digits lose none; names keep what some store could lose."""
    async with home(tmp_path) as store:
        tiny, big = Decimal("0.000000000000000001"), Decimal(123456789)
        for number, cost in enumerate((tiny, big, tiny)):
            charge = Charge("m", Usage(1, cost=cost))
            await done(store, attrs.evolve(used("a", number), charges=(charge,)))
        for text in TEXTS:
            await done(store, of_text(text))
        models = dict(await store.read(LedgerSums(ANY_TENANT, "model")))
        assert models.pop("m").cost == tiny + big + tiny
        assert models == {"model" + text: ONE for text in TEXTS}
