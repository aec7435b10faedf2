"""Session ids are UUIDv7: sortable by time, and nobody guesses one."""

import time
import uuid
from typing import Final

from warren.base.ids import new_session_id

MANY: Final = 20_000


def test_the_form_of_an_id() -> None:
    """Version 7 and the standard's variant in every one, in the canonical lower-case form."""
    for text in (new_session_id() for _ in range(1_000)):
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)


def test_an_id_tells_its_time() -> None:
    """The first 48 bits are the milliseconds since 1970 at which it was made."""
    before = time.time_ns() // 1_000_000
    stamp = uuid.UUID(new_session_id()).int >> 80
    assert before <= stamp <= time.time_ns() // 1_000_000


def test_ids_sort_by_time() -> None:
    """An id made in a later millisecond sorts after, as text too."""
    earlier = new_session_id()
    made = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= made:
        pass
    assert earlier < new_session_id()


def test_ids_differ() -> None:
    """Within one millisecond there are many ids, all different."""
    assert len({new_session_id() for _ in range(MANY)}) == MANY


def test_every_other_bit_is_random() -> None:
    """The 74 bits that carry no time and no version take both values: none is wasted on a constant."""
    ids = [uuid.UUID(new_session_id()).int for _ in range(200)]
    always = ids[0]
    ever = 0
    for value in ids:
        always &= value
        ever |= value
    fixed = 0x7 << 76 | 0x2 << 62
    mask = (1 << 80) - 1
    assert always & mask == fixed
    assert ever & mask == mask & ~(0x8 << 76) & ~(0x1 << 62)
