"""The rate limit of a key, which all calls of the process keep to, as far as the server tells it."""

import math
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from warren.base.backoff import Backoff
from warren.base.errors import ProviderError
from warren.base.values import define, frozen
from warren.transport.providers.failures import number

BACKOFF: Final = Backoff(first=1.0, longest=60.0)
"""The waits after refusals that name no time."""
JITTER: Final = 0.1
"""The share of a wait by which it may be longer, so that several processes do not come back at the same time."""
PATIENCE: Final = 2.0
"""Seconds after which a call that has no answer yet does not keep back the next one."""
WIDE: Final = 4_096
"""Calls at once from which on no limit is assumed any more."""
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|s|m|h|d)")
_SECONDS: Final[Mapping[str, float]] = {
    "d": 86_400,
    "h": 3_600,
    "m": 60,
    "s": 1,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
_EPOCH: Final = 1e9
"""Seconds since 1970 that no wait is as long as: greater numbers are moments."""
# The header with the rest of a limit, the one with its end, and whether it counts requests.
_LIMITS: Final = (
    *(
        (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset", kind == "requests")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
    *(
        (f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}", kind == "requests")
        for kind in ("requests", "tokens")
    ),
    ("x-ratelimit-remaining", "x-ratelimit-reset", True),
)


@frozen
class Told:
    """The rest of a limit, as an answer tells it.

    Attributes:
        left: calls that may be made before the limit ends; 0 if a limit of tokens is used up.
        seconds: seconds until the limit ends.
    """

    left: int
    seconds: float


def told(headers: Mapping[str, str], now: datetime) -> Told | None:
    """Return the tightest limit that the headers of an answer tell; None if they tell none."""
    given = {name: headers[name] for name in headers if "ratelimit" in name}
    if not given:  # most servers; each look for one of the names would go through all headers
        return None
    found = []
    for rest, end, counts_calls in _LIMITS:
        left, seconds = number(given.get(rest, "")), reset_after(given.get(end, ""), now)
        if left is not None and seconds is not None and (counts_calls or left == 0):
            found.append(Told(int(left), seconds))
    return min(found, key=lambda each: (each.left, -each.seconds), default=None)


def reset_after(text: str, now: datetime) -> float | None:
    """Return the seconds until the end of a limit; None if the text says nothing of them.

    Servers write `6m0s`, `20ms`, a number of seconds, a moment in (milli)seconds since 1970, or an RFC 3339 time.
    """
    text = text.strip()
    if (found := number(text)) is not None:
        if found < _EPOCH:
            return found
        return max(0.0, (found / 1_000 if found > _EPOCH * 1_000 else found) - now.timestamp())
    parts = _PARTS.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


@define(eq=False)
class RateLimit:
    """Keeps calls back while the server of a key wants none, and lets them go again gradually, in their order.

    A refusal closes the limit for the time that the server asks for. Then one call goes, and each answer lets two
    more go, until the server refuses again or nobody waits. A server that tells how many calls are left gets no more.

    Attributes:
        longest: seconds that a call waits at most.
        waiting: calls that wait.
    """

    longest: float
    waiting: int = 0
    _closed_until: float = -math.inf
    _refusals: int = 0  # in a row
    _epoch: int = 0  # counts the refusals that closed the limit
    _window: float = math.inf  # calls without an answer that there may be
    _unanswered: int = 0
    _newest: float = -math.inf  # time of the newest call
    _left: int | None = None  # calls that the server has left, of which `_unanswered` may be unknown to it
    _left_until: float = -math.inf
    _turn: trio.Lock = attrs.field(factory=trio.Lock)
    _changed: trio.Event | None = None  # of the call whose turn it is, while it waits

    async def enter(self, vendor: str) -> "Entry":
        """Wait until a call may go. The caller has to leave by the entry, however the call ends.

        Raises:
            ProviderError: if that takes longer than `longest`; the cause is `rate_limited`.
        """
        now = trio.current_time()
        if not self.waiting and self._wait(now) is None:
            return self._begin(now)
        if self._closed_until - now > self.longest:
            raise self._refusal(vendor)
        self.waiting += 1
        try:
            with trio.move_on_after(self.longest):
                async with self._turn:  # first come, first served
                    while (wait := self._wait(trio.current_time())) is not None:
                        self._changed = trio.Event()
                        with trio.move_on_after(wait):
                            await self._changed.wait()
                    return self._begin(trio.current_time())
        finally:
            self.waiting -= 1
        if self._refusals:
            raise self._refusal(vendor)
        return self._begin(trio.current_time())  # the server advises to wait longer, and has refused nothing

    def _begin(self, now: float) -> "Entry":
        self._unanswered += 1
        self._newest = now
        if self._left is not None:
            self._left -= 1
        return Entry(self, self._epoch)

    def _wait(self, now: float) -> float | None:
        """Return the seconds for which no call may go unless something changes; None if one may."""
        waits = []
        if now < self._closed_until:
            waits.append(self._closed_until - now)
        if self._left is not None and now >= self._left_until:
            if self._left <= 0:
                self._window = 1
            self._left = None
        if self._left is not None and self._left <= 0:
            waits.append(self._left_until - now)
        if self._unanswered >= self._window and now < self._newest + PATIENCE:
            waits.append(self._newest + PATIENCE - now)
        return max(waits, default=None)

    def _refusal(self, vendor: str) -> ProviderError:
        left = max(0.0, max(self._closed_until, self._left_until if self._left == 0 else 0.0) - trio.current_time())
        problem = f"{vendor} has asked to wait: the limit of the key is used up, and {self.waiting} calls wait for it"
        details = {"provider": vendor}
        return ProviderError(
            problem, cause="rate_limited", retryable=True, retry_after=round(left, 3) or None, details=details
        )

    def answered(self, epoch: int, headers: Mapping[str, str]) -> None:
        """Note an answer that is no refusal, to a call that began after as many refusals."""
        if epoch == self._epoch:
            self._refusals = 0
            self._window = self._window + 1 if self._window < WIDE and self.waiting else math.inf
        self._note(headers)
        self._change()

    def refused(self, epoch: int, headers: Mapping[str, str], retry_after: float | None) -> None:
        """Note a refusal: no call goes for the time that the server asks for."""
        now = trio.current_time()
        if epoch == self._epoch:  # of the calls that went at the same time, one counts
            self._refusals += 1
            self._epoch += 1
        if retry_after is None:
            rest = told(headers, datetime.now(UTC))
            by_rule = BACKOFF.delay(max(1, self._refusals))
            retry_after = by_rule if rest is None or rest.left else min(rest.seconds, BACKOFF.longest)
        wait = retry_after * (1 + JITTER * random.random())  # noqa: S311 - spreads load, hides nothing
        self._closed_until = max(self._closed_until, now + wait)
        self._window = 1
        self._change()

    def _note(self, headers: Mapping[str, str]) -> None:
        rest = told(headers, datetime.now(UTC))
        if rest is None:
            return
        now, left = trio.current_time(), rest.left - self._unanswered
        if self._left is not None and now < self._left_until:
            self._left = min(self._left, left)  # answers that overtake others know less
        else:
            self._left = left
            # Only a refusal makes calls fail. If the headers alone ask for a long wait, a call tries it in time.
            self._left_until = now + min(rest.seconds, self.longest / 2)

    def left(self) -> None:
        """Note that a call has its answer, or has none."""
        self._unanswered -= 1
        self._change()

    def _change(self) -> None:
        if self._changed is not None:
            self._changed.set()


@define(eq=False)
class Entry:
    """A call that has gone; it is left once, when its answer begins or it has failed."""

    limit: RateLimit
    epoch: int
    _done: bool = False

    def answered(self, headers: Mapping[str, str]) -> None:
        """Note an answer that is no refusal."""
        self.leave()
        self.limit.answered(self.epoch, headers)

    def refused(self, headers: Mapping[str, str], retry_after: float | None) -> None:
        """Note a refusal."""
        self.leave()
        self.limit.refused(self.epoch, headers, retry_after)

    def leave(self) -> None:
        """Note the end of a call, if nothing else was noted."""
        if not self._done:
            self._done = True
            self.limit.left()
