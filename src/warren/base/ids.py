"""Ids of sessions and inputs: UUIDs. The runtime makes them, never a client."""

import hashlib
import os
import time
import uuid


def new_session_id() -> str:
    """Return a new UUIDv7 as text. Ids sort by creation time, and 74 of their bits are random."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def id_under(key: str) -> str:
    """Return the UUIDv5 that belongs to a key: the same one in every process."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, key))


def id_beside(session_id: str, key: str) -> str:
    """Return an id of the form of `new_session_id` that belongs to a key: the same one in every process.

    It sorts beside a session, whose time of creation it has.
    """
    try:
        time_digits = uuid.UUID(session_id).hex[:12]
    except ValueError:
        time_digits = "0" * 12
    # The digits of `uuid.uuid5`, with the version and the variant of a UUIDv7.
    named = hashlib.sha1(uuid.NAMESPACE_OID.bytes + key.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(named[16], 16) & 3]
    return f"{time_digits[:8]}-{time_digits[8:]}-7{named[13:16]}-{variant}{named[17:20]}-{named[20:32]}"
