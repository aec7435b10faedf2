"""The finders of secrets: their checksums, and what is none."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.guards.secrets import IBAN_LENGTHS, luhn, mod97
from warren.base.fields import FieldValueError
from warren.guards import Redaction

ALL = Redaction()
DIGITS = st.text("0123456789", min_size=12, max_size=18)
SEPARATOR = st.sampled_from(["", " ", "-", "\u00a0"])
AROUND = st.sampled_from([("", ""), ("card: ", "."), ("(", ")"), ("pay 12 EUR with ", " please"), ('{"n":"', '"}')])


def with_check_digit(digits: str) -> str:
    """Return the digits with the check digit of Luhn, found by trying all."""
    return next(digits + each for each in "0123456789" if luhn(digits + each))


@st.composite
def ibans(draw: st.DrawFn) -> str:
    """Draw an IBAN, whose check digits are 98 minus the remainder, as the standard computes them."""
    country = draw(st.sampled_from(sorted(IBAN_LENGTHS)))
    size = IBAN_LENGTHS[country] - 4
    account = draw(st.text(string.digits + string.ascii_uppercase, min_size=size, max_size=size))
    number = "".join(str(int(each, 36)) for each in f"{account}{country}00")
    return f"{country}{98 - int(number) % 97:02}{account}"


@given(st.sampled_from("23456"), DIGITS.map(lambda each: each[1:]), SEPARATOR, AROUND)
def test_card_numbers(first: str, rest: str, separator: str, around: tuple[str, str]) -> None:
    """Of 13 to 19 digits, at once or by fours; with one digit changed they are none."""
    number = with_check_digit(first + rest)
    cut = [number[at : at + 4] for at in range(0, len(number), 4)]
    if separator and len(cut[-1]) == 1:
        cut[-2:] = ["".join(cut[-2:])]
    assert ALL.text(separator.join(cut).join(around)) == "[card]".join(around)
    other = str((int(number[-1]) + 1) % 10)
    assert not luhn(number[:-1] + other)
    wrong = number[:-1] + other
    assert ALL.text(wrong.join(around)) == wrong.join(around)


@given(DIGITS, st.integers(0, 17), st.integers(1, 9))
def test_luhn_finds_each_wrong_digit(digits: str, place: int, more: int) -> None:
    """One digit in ten is the check digit, and a change of any digit shows."""
    number = with_check_digit(digits)
    assert [luhn(digits + each) for each in "0123456789"].count(True) == 1
    at = place % len(number)
    wrong = number[:at] + str((int(number[at]) + more) % 10) + number[at + 1 :]
    assert not luhn(wrong)


@given(ibans(), SEPARATOR, st.booleans(), AROUND)
def test_ibans(iban: str, separator: str, lower: bool, around: tuple[str, str]) -> None:  # noqa: FBT001
    """At once or by fours, in letters of either case; with other check digits they are none."""
    told = separator.join(iban[at : at + 4] for at in range(0, len(iban), 4))
    assert Redaction(cards=False).text((told.lower() if lower else told).join(around)) == "[iban]".join(around)
    assert mod97(iban)
    wrong = iban[:2] + f"{(int(iban[2:4]) + 1) % 100:02}" + iban[4:]
    assert not mod97(wrong)
    assert Redaction(cards=False, keys=False).text(wrong) == wrong


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4111 1111 1111 1111 and 5500-0000-0000-0004", "[card] and [card]"),
        ("12 2024 4111 1111 1111 1111 07 28", "12 2024 [card] 07 28"),
        ("3782 822463 10005", "[card]"),
        ("id=4111111111111111;", "id=[card];"),
        ("DE89 3704 0044 0532 0130 00 is mine", "[iban] is mine"),
        ("to GB82WEST12345698765432, now", "to [iban], now"),
        ("ask Ann.O'Hara+x@mail.example.co.uk.", "ask Ann.O'[email]."),
        ("<grüße@münchen.example>", "<[email]>"),
        ("sk-ant-api03-" + "aB3_" * 10, "[key]"),
        ("key=AKIAIOSFODNN7EXAMPLE", "key=[key]"),
        ("ghp_" + "a1B2" * 9, "[key]"),
        ("Bearer xoxb-12345678901-abcdefghij", "Bearer [key]"),
        ("AIza" + "x" * 35, "[key]"),
        ("sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc", "[key]"),
    ],
)
def test_secrets(text: str, told: str) -> None:
    """As people and programs write them."""
    assert ALL.text(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "0.4111111111111111",
        "1700000000000",
        "2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
        "41111111111111111111111",
        "react@18.2.0, @decorator, a@b",
        "task-force-of-very-many-people, ask-me-about-anything-you-like",
        "DE00 3704 0044 0532 0130 00",
        "",
    ],
)
def test_what_is_none(text: str) -> None:
    """It stays."""
    assert ALL.text(text) == text


def test_patterns_of_the_user_come_first() -> None:
    """An empty match is none."""
    own = Redaction({"customer": r"K-\d+", "nothing": "z*"}, emails=False)
    assert own.text("K-17 wrote from a@b.example, 4111111111111111") == "[customer] wrote from a@b.example, [card]"
    with pytest.raises(FieldValueError, match=r"^patterns.order must be a regular expression: "):
        Redaction({"order": "("})


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "1 " * 100_000, "12 " * 70_000, "DE89 " * 40_000, "a.@" * 60_000, "sk- " * 60_000]
)
def test_long_texts(text: str) -> None:
    """None takes time that grows faster than its length: here a second would be an hour."""
    assert ALL.text(text) == text
