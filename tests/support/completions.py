"""Completion tokens for tests without a runtime that would make them."""

from datetime import UTC, datetime
from typing import Final

from warren.conversation.completion import CompletionKey, TokenMaker

KEY: Final = CompletionKey(b"the secret of a fake store")
DAY: Final = 24 * 3600


def token_for(session_id: str, call_id: str = "c1", tenant: str = "default") -> str:
    """Return a completion token of a call of a session, which is good for a day."""
    maker = TokenMaker(KEY, tenant, lambda: datetime.now(UTC))
    return maker.make(session_id, call_id, f"{session_id}:1:1:k", DAY)
