"""The catalog: what is known of a model, by its name, its editions and the user's own entries; costs that are exact."""

from decimal import Decimal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.usage import Usage
from warren.models.catalog import UNKNOWN, LongContext, ModelEntry, _table, entry_of, known
from warren.transport.providers.settings import VENDORS

SONNET = entry_of("claude-sonnet-5")
tokens = st.integers(0, 10**7)


def test_every_entry_is_whole() -> None:
    """Each model has a provider that Warren knows, a window, a cap, a source with its date, and no price of zero."""
    sources = _table()["sources"]
    for name, entry in known().items():
        assert entry.provider in VENDORS, name
        assert entry.window
        assert entry.max_output
        assert sources[entry.source or ""].keys() == {"url", "read"}
        for prices in (entry, entry.long_context):
            given = [getattr(prices, field) for field in ("input", "output", "cache_read", "cache_write_5m") if prices]
            assert all(price is None or price > 0 for price in given), name
        assert entry.priced


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic/claude-sonnet-5", "claude-sonnet-5"),
        ("claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("anthropic.claude-haiku-4-5-20251001-v1:0:200k", "claude-haiku-4-5"),
        ("global.anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/eu.anthropic.claude-sonnet-5", "claude-sonnet-5"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
    ],
)
def test_editions(model: str, plain: str) -> None:
    """An edition of a model is the model."""
    assert entry_of(model) == known()[plain]


@pytest.mark.parametrize("model", ["gpt-5-mini-of-mine", "claude-sonnet-5-turbo", "echo", "scripted:x.json", "llama"])
def test_another_name_has_no_price(model: str) -> None:
    """A name that only begins like a known one may be any model: its prices and abilities are unknown."""
    entry = entry_of(model)
    assert attrs.evolve(entry, window=None) == UNKNOWN
    assert entry.cost(Usage(1, 1)) is None


def test_the_cost_of_a_call() -> None:
    """Each kind of tokens has its price; those of the cache are part of the input."""
    usage = Usage(1_000_000, 100_000, cache_creation_tokens=200_000, cache_read_tokens=700_000)
    fresh, output = Decimal("0.1") * 2, Decimal("0.1") * 10
    assert SONNET.cost(usage) == fresh + output + Decimal("0.2") * Decimal("2.5") + Decimal("0.7") * Decimal("0.2")
    assert SONNET.cost(usage, hour=True) == fresh + output + Decimal("0.2") * 4 + Decimal("0.7") * Decimal("0.2")


def test_long_requests_cost_more() -> None:
    """Above the bound the other prices hold for the whole call; up to it they do not."""
    entry = entry_of("gemini-2.5-pro")
    assert entry.cost(Usage(200_000, 1_000)) == Decimal("0.26")
    assert entry.cost(Usage(200_001, 1_000)) == Decimal("0.5150025")


def test_an_unknown_price_is_no_zero() -> None:
    """A call with tokens whose price is unknown has no cost, and a call without such tokens has one."""
    entry = ModelEntry(input=Decimal(1), output=Decimal(2))
    assert entry.cost(Usage(10, 10)) == Decimal("0.00003")
    assert entry.cost(Usage(10, 10, cache_read_tokens=1)) is None
    assert entry.cost(Usage(10, 10, cache_creation_tokens=1)) is None
    assert ModelEntry(input=Decimal(1)).cost(Usage(10, 1)) is None


@given(st.lists(st.builds(Usage, tokens, tokens), max_size=20))
def test_sums_are_exact(usages: list[Usage]) -> None:
    """The cost of many calls is the sum of theirs to the last digit, in any order; JSON keeps it."""
    priced = [attrs.evolve(usage, cost=SONNET.cost(usage)) for usage in usages]
    total = sum(priced, Usage())
    assert total == sum(reversed(priced), Usage())
    exact = sum(2 * usage.input_tokens + 10 * usage.output_tokens for usage in usages)
    assert total.known_cost is not None
    assert total.known_cost * 1_000_000 == exact
    assert codec.decode_stored(Usage, codec.encode_whole(total)) == total
    assert codec.from_server(Usage, codec.parse(codec.encode(total))) == total


def test_one_unknown_cost_makes_the_sum_unknown() -> None:
    """A turn has a cost only if each of its calls has one; what a store has from before costs were known has none."""
    known_, unknown = Usage(1, 1, cost=Decimal(1)), Usage(1, 1)
    assert (known_ + unknown).cost is None
    assert (known_ + unknown + known_).known_cost is None
    told = Usage(cost=Decimal("0.5"))  # a provider that counts no tokens
    assert (Usage() + told + known_).cost == Decimal("1.5")
    assert (told + unknown).known_cost is None
    assert told.known_cost == Decimal("0.5")
    assert (Usage() + known_).cost == (known_ + Usage()).cost == Decimal(1)
    assert (Usage() + Usage()).cost is None
    assert Usage().known_cost == 0
    assert codec.decode_stored(Usage, b'{"input_tokens":3,"output_tokens":4}').known_cost is None


def test_own_entries_win() -> None:
    """An own entry replaces the facts that it has; its prices replace all prices, so that no two lists are mixed."""
    own = {"gpt-5.4": ModelEntry(window=10_000), "gemini-2.5-pro": ModelEntry(input=Decimal(1), output=Decimal(3))}
    assert entry_of("gpt-5.4", own) == attrs.evolve(known()["gpt-5.4"], window=10_000)
    mine = entry_of("gemini-2.5-pro", own)
    assert (mine.input, mine.output, mine.cache_read, mine.long_context) == (Decimal(1), Decimal(3), None, None)
    assert (mine.window, mine.images) == (1_048_576, True)


def test_entries_from_outside() -> None:
    """Prices may be whole numbers, numbers with a fraction, which mean what they say, or texts; nothing else."""
    data = {"input": 0.1, "output": "0.30", "cache_read": 2, "long_context": {"above": 10, "input": 5}}
    entry = codec.from_data(ModelEntry, data)
    assert entry == ModelEntry(
        input=Decimal("0.1"),
        output=Decimal("0.3"),
        cache_read=Decimal(2),
        long_context=LongContext(above=10, input=Decimal(5)),
    )


@pytest.mark.parametrize("bad", ["much", -1, True, [], {}, "NaN", "Infinity"])
def test_bad_prices(bad: object) -> None:
    """A price that is no decimal number of at least 0 is refused by its path."""
    with pytest.raises(InvalidParamsError, match=r"\$\.input"):
        codec.from_data(ModelEntry, {"input": bad, "output": 1})
