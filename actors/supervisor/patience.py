"""How long sessions are left alone whose turns come to nothing: each further try comes later. No I/O."""

from collections.abc import Collection
from typing import Final

import attrs

FIRST: Final = 30.0
LONGEST: Final = 3600.0


@attrs.define
class Patience:
    """Sessions that wait for another try of what they have begun in vain, as each try may cost a model's call."""

    _waits: dict[str, tuple[float, float]] = attrs.field(factory=dict)  # how long the last wait is, and until when

    def set_back(self, session_id: str, now: float) -> None:
        """Note that a try came to nothing; times are in seconds."""
        last, _ = self._waits.get(session_id, (FIRST / 2, now))
        wait = min(2 * last, LONGEST)
        self._waits[session_id] = wait, now + wait

    def may_try(self, session_id: str, now: float) -> bool:
        """Tell whether a session has been left alone for long enough."""
        _, until = self._waits.get(session_id, (0.0, now))
        return now >= until

    def forget_others(self, sessions: Collection[str]) -> None:
        """Forget all but these: nothing waits for the others any more."""
        for session_id in self._waits.keys() - set(sessions):
            del self._waits[session_id]
