"""Ids of sessions and inputs: UUIDs. The runtime makes them, never a client."""

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
        time_bits = uuid.UUID(session_id).int >> 80 << 80
    except ValueError:
        time_bits = 0
    value = time_bits | uuid.uuid5(uuid.NAMESPACE_OID, key).int & (1 << 80) - 1
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
