"""The limits of tenants and tokens in one process, and the counts that are held against them. No I/O."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Final, Literal, cast, get_args
from weakref import WeakValueDictionary

import attrs

from warren.base.errors import CapacityCause, CapacityExceededError
from warren.base.principals import Principal
from warren.base.tenant_limits import NO_LIMITS, TenantLimits, TokenLimits
from warren.base.values import define

MINUTE: Final = 60.0
DAY: Final = 86_400.0
ROUNDING: Final = 1e-6
"""Seconds to wait for the rate of turns that are none: they come from the rounding of the sums."""
SOON: Final = 1.0
"""Seconds after which a turn may be tried again if as many run as may: nothing tells when one will end."""
MOST_KEPT: Final = 1_000
"""Accounts of tokens, and rates of tokens, that are kept while nobody uses them."""
Stored = Literal["sessions", "tokens_per_day", "stored_bytes", "memory_texts"]
"""The limits whose counts are in the store."""
STORED: Final[tuple[Stored, ...]] = get_args(Stored)
NEVER: Final = -math.inf


@define(eq=False)
class Figure:
    """A count of the store, as it was read last, with the additions of this process since.

    Attributes:
        value: the count.
        good_until: the time until which it is used; `NEVER` if it has to be read before it is used again.
        moved: whether the count has changed since the newest reading began.
        day: the day (UTC) on which that reading began, in days since 1970.
        coming: more of it that is on its way to the store: sessions that are being created, or tokens that running
            turns of this process have used.
    """

    value: int = 0
    good_until: float = NEVER
    moved: bool = False
    day: int = 0
    coming: int = 0

    def add(self, count: int) -> None:
        """Note that this process has stored more."""
        self.value += count
        self.moved = True

    def expire(self) -> None:
        """Have the count read before it is used again."""
        self.good_until, self.moved = NEVER, True


@define(eq=False)
class Moment:
    """The turns that the clients of a tenant or a token run and begin at this moment. A token has one in all tenants.

    Attributes:
        running: turns that run.
        busy: how many reasons each session has to count: its turn runs or waits for room, or is being accepted.
        rested_at: the time from which on as many turns may begin at once as within a minute; each that begins moves it.
    """

    running: int = 0
    busy: dict[str, int] = attrs.field(factory=dict)
    rested_at: float = NEVER

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


@define(eq=False)
class Counts:
    """The counts of the clients of a tenant, or of those of one name in it, with whichever of its tokens.

    Attributes:
        moment: their turns; those of a token in all tenants.
        figures: the counts of the store.
        accounts: those of the tokens of the name that are in use, by their limits.
    """

    moment: Moment = attrs.field(factory=Moment)
    figures: Mapping[Stored, Figure] = attrs.field(factory=lambda: {name: Figure() for name in STORED})
    accounts: "WeakValueDictionary[TokenLimits, Account]" = attrs.field(factory=WeakValueDictionary)


@define(eq=False)
class Account:
    """Counts, and the limits that they are held against: those of one tenant, or of one token in a tenant.

    Tokens of one name may have different limits: each has its own account, and all of these the same counts.

    Attributes:
        kind: whose limits they are.
        tenant: the tenant.
        name: the name of the clients of the token within the tenant; None for the limits of the tenant.
        limits: the limits.
        counts: the counts.
        moment: those of this moment.
        figures: those of the store.
    """

    kind: Literal["tenant", "token"]
    tenant: str
    name: str | None
    limits: TokenLimits
    counts: Counts = attrs.field(factory=Counts)
    moment: Moment = attrs.field(init=False)
    figures: Mapping[Stored, Figure] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.moment, self.figures = self.counts.moment, self.counts.figures

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
        return self.figures[name]


Accounts = Sequence[Account]
NOBODY: Final[Accounts] = ()
"""The accounts of a caller without limits."""


@define(eq=False)
class Acceptance:
    """A turn that counts for the rates of its caller while it is being accepted.

    Attributes:
        taken: whether it was accepted.
    """

    taken: bool = False

    def take(self) -> None:
        """Note that the turn was accepted."""
        self.taken = True


@define(eq=False)
class Spending:
    """The tokens that the running turn of a session has used, for accounts with a limit of them.

    Attributes:
        by: the accounts.
        unstored: the tokens that the store does not have.
    """

    by: Accounts
    unstored: int = 0
    _seen: float = 0.0  # sum of `good_until` of the counts when the newest tokens were used: another one was read later

    def spend(self, tokens: int) -> None:
        """Note that a model call has used tokens."""
        self.unstored += tokens
        self._seen = 0.0
        for account in self.by:
            figure = account.figures["tokens_per_day"]
            figure.coming += tokens
            self._seen += figure.good_until

    def stored(self) -> None:
        """Note that the store has the tokens so far, or that the turn has ended.

        They need not be read for it, which would cost each turn more than all else about limits does.
        """
        tokens, seen = self.unstored, 0.0
        self.unstored = 0
        if not tokens:
            return
        for account in self.by:
            figure = account.figures["tokens_per_day"]
            seen += figure.good_until
            figure.coming -= tokens
            figure.value += tokens
            figure.moved = True
        if seen != self._seen:  # a count was read meanwhile, which may have them already
            for account in self.by:
                account.figures["tokens_per_day"].expire()


@define(eq=False)
class Tenancy:
    """The accounts of the tenants and tokens that have limits. Times are in seconds, on one clock that never goes back.

    Attributes:
        tenants: the limits of the tenants.
        nodes: living nodes among which the limits of this moment, running turns and turns a minute, are shared out.
        clock: the time in seconds since 1970, for the end of the day.
        refused: the requests that were refused so far, and the compactions that remembered nothing, by the cause.
        senders: the accounts of the newest caller that waits for a turn of a session, by the session.
        unbegun: the accounts of the turns that were admitted and have not begun, by the session.
        spending: the tokens of running turns, by the session.
    """

    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict)
    nodes: int = 1
    clock: Callable[[], float] = time.time
    refused: Counter[str] = attrs.field(factory=Counter)
    senders: dict[str, Accounts] = attrs.field(factory=dict)
    unbegun: dict[str, Accounts] = attrs.field(factory=dict)
    spending: dict[str, Spending] = attrs.field(factory=dict)
    _of_tenants: dict[str, Account] = attrs.field(factory=dict)
    _observed: dict[str, Account] = attrs.field(factory=dict)
    # Clients may come with any number of tokens, and a token may name any number of tenants. What somebody uses is
    # found again; of the rest the newest accounts are kept, and the rates that would let more turns begin if forgotten.
    _of_names: WeakValueDictionary[tuple[str, str], Counts] = attrs.field(factory=WeakValueDictionary)
    _newest: OrderedDict[tuple[str, str], Account] = attrs.field(factory=OrderedDict)
    _moments: WeakValueDictionary[tuple[str, str], Moment] = attrs.field(factory=WeakValueDictionary)
    _rates: dict[tuple[str, str], Moment] = attrs.field(factory=dict)
    _most_rates: int = MOST_KEPT
    _now: float = NEVER  # the time of the newest turn

    def __attrs_post_init__(self) -> None:
        for tenant, limits in self.tenants.items():
            self._of_tenants[tenant] = Account("tenant", tenant, None, limits)

    def of_tenant(self, tenant: str) -> Account | None:
        """Return the account of a tenant; None if it has no limits."""
        return self._of_tenants.get(tenant)

    def observed(self, tenant: str) -> Account:
        """Return the account of a tenant for its figures; one without limits has an account for nothing else."""
        found = self._of_tenants.get(tenant)
        if found is None:  # clients may name any number of tenants: the newest are kept
            found = self._observed.pop(tenant, None) or Account("tenant", tenant, None, NO_LIMITS)
            self._observed[tenant] = found
            if len(self._observed) > MOST_KEPT:
                del self._observed[next(iter(self._observed))]
        return found

    def of(self, principal: Principal) -> Accounts:
        """Return the accounts of a caller: that of its tenant, and that of its token, if they have limits."""
        tenant = self._of_tenants.get(principal.tenant)
        if principal.limits is NO_LIMITS:
            return NOBODY if tenant is None else (tenant,)
        token = self._of_token(principal)
        return (token,) if tenant is None else (tenant, token)

    def of_owner(self, tenant: str, name: str) -> Accounts:
        """Return the accounts for what a model makes in a session: its tenant's, and that of its owner's newest token.

        A token that nobody has used here lately is not known.
        """
        found = self._of_tenants.get(tenant), self._newest.get((tenant, name))
        return tuple(each for each in found if each is not None)

    def _of_token(self, principal: Principal) -> Account:
        key = principal.tenant, principal.name
        counts = self._of_names.get(key)
        if counts is None:
            counts = self._of_names[key] = Counts(self._moments.setdefault(principal.token, Moment()))
        account = counts.accounts.get(principal.limits)
        if account is None:
            account = counts.accounts[principal.limits] = Account("token", *key, principal.limits, counts)
        self._newest[key] = account
        self._newest.move_to_end(key)
        if len(self._newest) > MOST_KEPT:
            self._newest.popitem(last=False)
        if account.limits.turns_per_minute is not None:
            self._rates[principal.token] = account.moment
            if len(self._rates) > self._most_rates:
                self._rates = {each: kept for each, kept in self._rates.items() if kept.rested_at > self._now}
                self._most_rates = max(MOST_KEPT, 2 * len(self._rates))
        return account

    def limited(self, tenant: str, own: Account | None, limit: Stored) -> Accounts:
        """Return those of the account of a tenant and of another one that have a limit."""
        found = self._of_tenants.get(tenant), own
        return tuple(each for each in found if each is not None and each.limit(limit) is not None)

    def strictest(self, tenant: str, name: str, limit: Stored) -> Account | None:
        """Return the account with the least limit of the tokens of a name that are in use here; None if there is none.

        It is for what no client asks for at this moment, so that nobody can tell which of these tokens it is for.
        """
        counts = self._of_names.get((tenant, name))
        found = [] if counts is None else [(each.limit(limit), each) for each in counts.accounts.values()]
        return min(((most, each) for most, each in found if most is not None), key=itemgetter(0), default=(0, None))[1]

    def day(self) -> int:
        """Return today (UTC), in days since 1970."""
        return int(self.clock() // DAY)

    def left_of_day(self) -> float:
        """Return the seconds until midnight (UTC)."""
        return DAY - self.clock() % DAY

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

    def check_turn(self, by: Accounts, session_id: str | None, now: float, *, waits: bool = False) -> None:
        """Check that one more turn may begin, and that its session may grow.

        Args:
            by: the accounts of its caller; the counts of the store in them are up to date.
            session_id: its session; None if the session is new.
            now: the time.
            waits: whether the turn waits while as many run as may.

        Raises CapacityExceededError.
        """
        shared = self.nodes > 1
        for account in by:
            # All turns of callers with limits come here: what refuses none calls as few functions as it can.
            limits, moment = account.limits, account.moment
            most, busy, rate = limits.running_turns, moment.busy, limits.turns_per_minute
            full = most is not None and len(busy) >= (self.share(most) if shared else most)
            if full and not waits and session_id not in busy:
                raise self.refusal(account, "running_turns", f"runs {most} turns, as many as it may", SOON)
            if rate is not None:
                wait = moment.rested_at - now - MINUTE + MINUTE / (self.share(rate) if shared else rate)
                if wait > ROUNDING:
                    problem = f"has begun {rate} turns within a minute, as many as it may"
                    raise self.refusal(account, "turns_per_minute", problem, wait)
            figures = account.figures
            if limits.stored_bytes is not None and figures["stored_bytes"].value >= limits.stored_bytes:
                self.check_growth((account,))
            tokens = limits.tokens_per_day
            if tokens is not None and (used := figures["tokens_per_day"]).value + used.coming >= tokens:
                self.check_tokens((account,))

    def check_tokens(self, by: Accounts) -> None:
        """Check that one more model call may be made. Raises CapacityExceededError."""
        for account in by:
            limit = account.limits.tokens_per_day
            if limit is not None and (used := account.figures["tokens_per_day"]).value + used.coming >= limit:
                problem = f"has used its {limit} tokens of today (UTC)"
                raise self.refusal(account, "tokens_per_day", problem, self.left_of_day())

    def check_growth(self, by: Accounts, files: int = 0) -> None:
        """Check that a session may grow by files of this size. Raises CapacityExceededError."""
        for account in by:
            limit = account.limits.stored_bytes
            if limit is not None and account.figures["stored_bytes"].value + files >= limit:
                problem = f"has {limit} bytes stored, as many as it may: delete sessions"
                raise self.refusal(account, "stored_bytes", problem, None)

    def begin_turn(self, by: Accounts, now: float) -> None:
        """Count a turn for the rates of its caller, after `check_turn`."""
        self._now = now
        for account in by:
            rate = account.limits.turns_per_minute
            if rate is not None:
                moment = account.moment
                moment.rested_at = max(now, moment.rested_at) + MINUTE / self.share(rate)

    def give_back(self, by: Accounts) -> None:
        """Count a turn for the rates no longer, after `begin_turn`."""
        for account in by:
            rate = account.limits.turns_per_minute
            if rate is not None:
                account.moment.rested_at -= MINUTE / self.share(rate)

    def may_begin(self, tenant: str) -> bool:
        """Return whether one more turn of a tenant may begin that waits for room."""
        account = self._of_tenants.get(tenant)
        if account is None:
            return True
        limits = account.limits
        if limits.running_turns is not None and account.moment.running >= self.share(limits.running_turns):
            return False
        if limits.tokens_per_day is None:
            return True
        figure = account.figures["tokens_per_day"]
        return figure.day == self.day() and figure.value + figure.coming < limits.tokens_per_day

    def begins(self, session_id: str) -> None:
        """Note that the turn of a session has begun, which was admitted before."""
        self.unbegun.pop(session_id, None)

    def spends(self, session_id: str, tenant: str, payer: str) -> Spending | None:
        """Return the count of the tokens of a turn that begins; None if nobody has a limit of them.

        Args:
            session_id: its session.
            tenant: the tenant of the session.
            payer: the name of the client that they count for; empty if it has no limit of its own.
        """
        by = NOBODY
        account = self._of_tenants.get(tenant)
        if account is not None and account.limits.tokens_per_day is not None:
            by = (account,)
        if payer:
            account = self._payer(session_id, tenant, payer)
            if account is not None and account.limits.tokens_per_day is not None:
                by = (*by, account)
        if not by:
            return None
        found = self.spending[session_id] = Spending(by)
        return found

    def _payer(self, session_id: str, tenant: str, payer: str) -> Account | None:
        """Return the account of the client that a turn's tokens count for; it may have left before the turn began."""
        for account in self.unbegun.get(session_id) or self.senders.get(session_id) or NOBODY:
            if account.name == payer:
                return account
        return self.strictest(tenant, payer, "tokens_per_day")

    def ended_turn(self, session_id: str) -> None:
        """Note that the turn of a session has ended, or could not begin."""
        if self.unbegun and (accepted := self.unbegun.pop(session_id, None)) is not None:
            self.give_back(accepted)
        if self.spending and (spending := self.spending.pop(session_id, None)) is not None:
            spending.stored()

    # -- sessions

    def check_session(self, by: Accounts) -> None:
        """Check that one more session may be created. Raises CapacityExceededError."""
        for account in by:
            limit = account.limits.sessions
            if limit is not None and (made := account.figure("sessions")).value + made.coming >= limit:
                raise self.refusal(
                    account, "sessions", f"has {limit} sessions, as many as it may: archive or delete some", None
                )
        self.check_growth(by)

    def creates(self, by: Accounts) -> None:
        """Note that a session is being created, after `check_session`; the rest of it is in `creating`."""
        for account in by:
            account.figure("sessions").coming += 1

    @contextmanager
    def creating(self, by: Accounts) -> Iterator[None]:
        """Count the session that the body stores, after `creates`; if the body raises, it is not stored."""
        stored = False
        try:
            yield
            stored = True
        finally:
            for account in by:
                figure = account.figure("sessions")
                figure.coming -= 1
                figure.add(stored)

    def expire(self) -> None:
        """Have all counts read before they are used again."""
        own = (account.counts for account in (*self._of_tenants.values(), *self._observed.values()))
        for counts in (*own, *self._of_names.values()):
            for figure in counts.figures.values():
                figure.expire()

    def retired(self, tenant: str, *, deleted: bool = False) -> None:
        """Note that a session of a tenant was archived or deleted: counts that may be less now have to be read again.

        Those of bytes and texts can take long to read, and only a deletion changes them.
        """
        names: tuple[Stored, ...] = ("sessions", "stored_bytes", "memory_texts") if deleted else ("sessions",)
        own = self._of_tenants.get(tenant)
        of_names = [counts for (of, _), counts in self._of_names.items() if of == tenant]
        for counts in of_names if own is None else [own.counts, *of_names]:
            for name in names:
                counts.figures[name].expire()
