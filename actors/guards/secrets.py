"""The places of secrets in a text: card numbers, IBANs, e-mail addresses and API keys."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

Span = tuple[int, int]

# One separator at most between groups; `\d\.` before a number is the beginning of a decimal fraction.
NUMBERS: Final = re.compile(r"(?<!\d)(?<!\d\.)\d{2,19}(?:[ \u00a0\u202f-]\d{2,19})*(?!\d)")
GROUP: Final = re.compile(r"\d+")
IBAN: Final = re.compile(r"(?<![A-Za-z0-9])(?=([A-Za-z]{2}[0-9]{2}(?:[ \u00a0\u202f-]?[A-Za-z0-9]){11,30}))")
COUNTRIES: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
IBAN_LENGTHS: Final = {country: length for length, names in COUNTRIES.items() for country in names.split()}
EMAIL: Final = re.compile(r"(?<![\w.!#$%*+^~-])[\w.!#$%*+^~-]++@(?:[\w-]+\.)+[^\W\d_]{2,}")
KEY: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{20,}"  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}"  # Google
    r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"  # GitHub, GitLab
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}"  # Slack
    r"|[rs]k_(?:live|test)_\w{16,}|whsec_[\w+/=]{16,}"  # Stripe
    r"|SG\.[\w-]{16,}\.[\w-]{16,}"  # SendGrid
    r"|(?:hf|gsk|npm|r8)_[A-Za-z0-9]{30,}|(?:xai|pplx)-[A-Za-z0-9]{30,}"  # Hugging Face, Groq, npm, Replicate, xAI …
    r"|pypi-[\w-]{50,}"
    r")"
)


def luhn(digits: str) -> bool:
    """Return whether digits have the check digit of card numbers at their end (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value  # noqa: PLR2004 - the sum of its two digits
    return total % 10 == 0


def mod97(iban: str) -> bool:
    """Return whether letters and digits without separators have the check digits of an IBAN (ISO 7064, MOD 97-10)."""
    return int("".join(str(int(each, 36)) for each in iban[4:] + iban[:4])) % 97 == 1


def cards(text: str) -> Iterator[Span]:
    """Yield the places of card numbers: 13 to 19 digits at once, or in groups of which the first has four."""
    for run in NUMBERS.finditer(text):
        groups = [each.span() for each in GROUP.finditer(text, *run.span())]
        first = 0
        while first < len(groups):
            last = _end_of_card(text, groups, first)
            if last is not None:
                yield groups[first][0], groups[last][1]
            first = (first if last is None else last) + 1


def _end_of_card(text: str, groups: Sequence[Span], first: int) -> int | None:
    """Return the last group of the longest card number that begins with a group; None if none does."""
    digits, found = "", None
    for last, (begin, end) in enumerate(groups[first : first + 10], first):  # each has two digits at least
        digits += text[begin:end]
        grouped = last > first
        if len(digits) > 19 or (grouped and (groups[first][1] - groups[first][0] != 4 or end - begin > 6)):  # noqa: PLR2004
            break
        if len(digits) >= 13 and digits[0] in "23456" and luhn(digits):  # noqa: PLR2004 - ISO/IEC 7812-1
            found = last
    return found


def ibans(text: str) -> Iterator[Span]:
    """Yield the places of IBANs of the countries that have them."""
    for found in IBAN.finditer(text):
        length = IBAN_LENGTHS.get(found[1][:2].upper())
        if length is None:
            continue
        places = [at for at, each in enumerate(found[1]) if each.isalnum()][:length]
        end = found.start() + places[-1] + 1
        whole = len(places) == length and not text[end : end + 1].isalnum()
        if whole and mod97("".join(found[1][at] for at in places)):
            yield found.start(), end


def emails(text: str) -> Iterator[Span]:
    """Yield the places of e-mail addresses."""
    return (each.span() for each in EMAIL.finditer(text)) if "@" in text else iter(())


def keys(text: str) -> Iterator[Span]:
    """Yield the places of API keys, by the forms of their vendors."""
    return (each.span() for each in KEY.finditer(text))
