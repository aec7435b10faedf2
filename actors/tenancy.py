"""The limits of tenants and tokens in one process, and the counts that are held against them. No I/O."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, cast

import attrs

from warren.errors import CapacityCause, CapacityExceededError
from warren.principals import Principal
from warren.tenant_limits import NO_LIMITS, TenantLimits, TokenLimits
from warren.values import define

MINUTE: Final = 60.0
DAY: Final = 86_400.0
ROUNDING: Final = 1e-6
"""Share of a turn by which the sums of the bucket may be wrong."""
SOON: Final = 1.0
"""Seconds after which a turn may be tried again if as many run as may: nothing tells when one will end."""
Stored = Literal["sessions", "tokens_per_day", "stored_bytes", "memory_texts"]
"""The limits whose counts are in the store."""
NEVER: Final = -math.inf


@define(eq=False)
class Figure:
    """A count of the store, as it was read last, with the additions of this process since.

    Attributes:
        value: the count.
        read_at: the time at which it was read; `NEVER` if it has to be read before it is used again.
        took: seconds that the reading took.
        moved: whether the count has changed since the newest reading began.
        day: the day (UTC) on which that reading began, in days since 1970.
    """

    value: int = 0
    read_at: float = NEVER
    took: float = 0.0
    moved: bool = False
    day: int = 0

    def add(self, count: int) -> None:
        """Note that this process has stored more."""
        self.value += count
        self.moved = True

    def expire(self) -> None:
        """Have the count read before it is used again."""
        self.read_at, self.moved = NEVER, True


@define(eq=False)
class Account:
    """The counts that are held against the limits of one tenant, or of one token of a tenant.

    Attributes:
        kind: whose limits they are.
        tenant: the tenant.
        name: the name of the token within the tenant; None for the limits of the tenant.
        limits: the limits.
        running: turns that run.
        busy: how many reasons each session has to count: its turn runs or waits for room, or is being accepted.
        creating: sessions that are being created.
        figures: the counts of the store.
    """

    kind: Literal["tenant", "token"]
    tenant: str
    name: str | None
    limits: TokenLimits
    running: int = 0
    busy: dict[str, int] = attrs.field(factory=dict)
    creating: int = 0
    figures: dict[Stored, Figure] = attrs.field(factory=dict)
    _tokens: float = math.inf  # of the bucket: turns that may begin now
    _filled_at: float = 0.0

    @property
    def shown(self) -> str:
        """Whose limits they are, for people."""
        return f"the tenant {self.tenant!r}" if self.name is None else f"the token {self.name!r}"

    def limit(self, name: str) -> int | None:
        """Return a limit; None if there is none."""
        found: int | None = getattr(self.limits, name, None)
        return found

    def figure(self, name: Stored) -> Figure:
        """Return a count of the store."""
        return self.figures.setdefault(name, Figure())

    # -- the bucket

    def wait_for_turn(self, per_minute: int, now: float) -> float:
        """Return the seconds until one more turn may begin by the rate; 0 if it may begin now."""
        grown = (now - self._filled_at) * per_minute / MINUTE
        self._tokens, self._filled_at = min(self._tokens + grown, per_minute), now
        lacking = 1 - self._tokens
        return lacking * MINUTE / per_minute if lacking > ROUNDING else 0.0

    def began_turn(self) -> None:
        """Note that a turn has begun, after `wait_for_turn`."""
        self._tokens -= 1

    # -- sessions that are busy

    def hold(self, session_id: str) -> None:
        """Count a session as busy for one more reason."""
        self.busy[session_id] = self.busy.get(session_id, 0) + 1

    def let_go(self, session_id: str) -> None:
        """End one reason to count a session as busy."""
        left = self.busy[session_id] - 1
        if left:
            self.busy[session_id] = left
        else:
            del self.busy[session_id]


Accounts = Sequence[Account]
NOBODY: Final[Accounts] = ()
"""The accounts of a caller without limits."""


@define(eq=False)
class Tenancy:
    """The accounts of the tenants and tokens that have limits. Times are in seconds, on one clock that never goes back.

    Attributes:
        tenants: the limits of the tenants.
        nodes: living nodes among which the limits of this moment, running turns and turns a minute, are shared out.
        clock: the time in seconds since 1970, for the end of the day.
        refused: the requests that were refused so far, and the compactions that remembered nothing, by the cause.
        senders: the accounts of the newest caller that waits for a turn of a session, by the session.
    """

    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict)
    nodes: int = 1
    clock: Callable[[], float] = time.time
    refused: Counter[str] = attrs.field(factory=Counter)
    senders: dict[str, Accounts] = attrs.field(factory=dict)
    _of_tenants: dict[str, Account] = attrs.field(factory=dict)
    _of_tokens: dict[tuple[str, str], Account] = attrs.field(factory=dict)
    _observed: dict[str, Account] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for tenant, limits in self.tenants.items():
            self._of_tenants[tenant] = Account("tenant", tenant, None, limits)

    def of_tenant(self, tenant: str) -> Account | None:
        """Return the account of a tenant; None if it has no limits."""
        return self._of_tenants.get(tenant)

    def observed(self, tenant: str) -> Account:
        """Return the account of a tenant for its figures; one without limits has an account for nothing else."""
        found = self._of_tenants.get(tenant)
        return self._observed.setdefault(tenant, Account("tenant", tenant, None, NO_LIMITS)) if found is None else found

    def of(self, principal: Principal) -> Accounts:
        """Return the accounts of a caller: that of its tenant, and that of its token, if they have limits."""
        tenant = self._of_tenants.get(principal.tenant)
        if principal.limits is NO_LIMITS:
            return NOBODY if tenant is None else (tenant,)
        token = self._of_token(principal)
        return (token,) if tenant is None else (tenant, token)

    def _of_token(self, principal: Principal) -> Account:
        key = principal.tenant, principal.name
        account = self._of_tokens.get(key)
        if account is None:
            account = self._of_tokens[key] = Account("token", *key, principal.limits)
        elif account.limits != principal.limits:  # the list of tokens has changed
            account.limits = principal.limits
        return account

    def day(self) -> int:
        """Return today (UTC), in days since 1970."""
        return int(self.clock() // DAY)

    def share(self, limit: int) -> int:
        """Return the part of a limit that this process may use."""
        return -(-limit // self.nodes)

    def refusal(self, account: Account, name: str, problem: str, retry_after: float | None) -> CapacityExceededError:
        """Return the error for a limit that is reached, and count it."""
        cause = cast("CapacityCause", self.count_refusal(account, name))
        text, details = f"{account.shown} {problem}", {"retry_after": retry_after}
        return CapacityExceededError(text, cause=cause, retryable=retry_after is not None, details=details)

    def count_refusal(self, account: Account, name: str) -> str:
        """Count a limit that is reached; return its name as a cause."""
        cause = f"{account.kind}_{name}"
        self.refused[cause] += 1
        return cause

    # -- turns

    def check_turn(self, by: Accounts, session_id: str | None, now: float) -> None:
        """Check that one more turn may begin, and that its session may grow.

        Args:
            by: the accounts of its caller; the counts of the store in them are up to date.
            session_id: its session; None if the session is new.
            now: the time.

        Raises CapacityExceededError.
        """
        for account in by:
            self._check_running(account, session_id)
            per_minute = account.limits.turns_per_minute
            if per_minute is not None:
                wait = account.wait_for_turn(self.share(per_minute), now)
                if wait:
                    problem = f"has begun {per_minute} turns within a minute, as many as it may"
                    raise self.refusal(account, "turns_per_minute", problem, wait)
        self.check_growth(by)
        for account in by:
            limit = account.limit("tokens_per_day")
            if limit is not None and account.figure("tokens_per_day").value >= limit:
                problem = f"has used its {limit} tokens of today (UTC)"
                raise self.refusal(account, "tokens_per_day", problem, DAY - self.clock() % DAY)

    def _check_running(self, account: Account, session_id: str | None) -> None:
        limit = account.limits.running_turns
        if limit is not None and session_id not in account.busy and len(account.busy) >= self.share(limit):
            raise self.refusal(account, "running_turns", f"runs {limit} turns, as many as it may", SOON)

    def check_growth(self, by: Accounts, files: int = 0) -> None:
        """Check that a session may grow, by files of so many bytes at once. Raises CapacityExceededError."""
        for account in by:
            limit = account.limit("stored_bytes")
            if limit is not None and account.figure("stored_bytes").value + files >= limit:
                problem = f"has {limit} bytes stored, as many as it may: delete sessions"
                raise self.refusal(account, "stored_bytes", problem, None)

    def began_turn(self, by: Accounts) -> None:
        """Note that a turn was accepted, after `check_turn`."""
        for account in by:
            if account.limits.turns_per_minute is not None:
                account.began_turn()

    def may_begin(self, tenant: str) -> bool:
        """Return whether one more turn of a tenant may begin that waits for room."""
        account = self._of_tenants.get(tenant)
        limit = None if account is None else account.limits.running_turns
        return account is None or limit is None or account.running < self.share(limit)

    def ended_turn(self, tenant: str) -> None:
        """Note that the tokens of a turn were stored: they have to be read before the next turn."""
        account = self._of_tenants.get(tenant)
        if account is not None:
            account.figure("tokens_per_day").expire()

    # -- sessions

    def check_session(self, by: Accounts) -> None:
        """Check that one more session may be created. Raises CapacityExceededError."""
        for account in by:
            limit = account.limits.sessions
            if limit is not None and account.figure("sessions").value + account.creating >= limit:
                raise self.refusal(
                    account, "sessions", f"has {limit} sessions, as many as it may: archive or delete some", None
                )
        self.check_growth(by)

    def creates(self, by: Accounts) -> None:
        """Note that a session is being created, after `check_session`; the rest of it is in `creating`."""
        for account in by:
            account.creating += 1

    @contextmanager
    def creating(self, by: Accounts) -> Iterator[None]:
        """Count the session that the body stores, after `creates`; if the body raises, it is not stored."""
        stored = False
        try:
            yield
            stored = True
        finally:
            for account in by:
                account.creating -= 1
                account.figure("sessions").add(stored)

    def retired(self, tenant: str) -> None:
        """Note that a session of a tenant was archived or deleted, or may have been: its counts have to be read."""
        for account in self._all_of(tenant):
            for figure in account.figures.values():
                figure.expire()

    def _all_of(self, tenant: str) -> Collection[Account]:
        own = self._of_tenants.get(tenant)
        tokens = (account for (of, _), account in self._of_tokens.items() if of == tenant)
        return (*([] if own is None else [own]), *tokens)
