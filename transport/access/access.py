"""Access to one gateway: its tokens, kept up to date while it runs, and the connections that end with their tokens."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import httpx
import trio

from warren.actors.events.eventlog import utc_now
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.principals import LOCAL, Principal
from warren.base.values import define
from warren.reports.audit import Action, AuditEntry, Outcome, by_of
from warren.reports.health import AccessHealth
from warren.settings.config import PostgresConfig
from warren.transport.access.auth import AccessPolicy
from warren.transport.access.config import GatewayConfig
from warren.transport.access.jwt_config import JwtConfig, is_url
from warren.transport.access.logins import Authenticator, Login, single
from warren.transport.access.pace import Paces
from warren.transport.access.places import Places
from warren.transport.access.token_list import ROOT, read_logins
from warren.transport.access.token_table import FIELD, IN_FILES, WatchedTable
from warren.transport.access.watched import Stays, WatchedFile

JWT: Final = "$.jwt"
Note = Callable[[AuditEntry], None]
"""Adds an entry to the audit; never waits."""
logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Access:
    """The access rules of a gateway that runs.

    Attributes:
        policy: the clients that are let in.
        stays: the open connections and answers, which end with their tokens.
        paces: the paces of tenants and tokens.
        places: the connections of tenants.
        problems: each says why tokens or keys are not up to date; None if they are.
        looks: each reads a file of tokens or keys again, changed or not, and logs what is new.
    """

    policy: AccessPolicy
    stays: Stays
    paces: Paces = attrs.field(factory=Paces)
    places: Places = attrs.field(factory=Places)
    problems: list[Callable[[], str | None]] = attrs.field(factory=list)
    looks: list[Callable[[], Awaitable[None]]] = attrs.field(factory=list)

    async def look_again(self, hangups: AsyncIterable[object]) -> None:
        """Read the files of tokens and keys again at each of some signals; they are read when they change besides."""
        async for _ in hangups:
            for look in self.looks:
                await look()
            logger.warning("SIGHUP: %s; a change of other settings needs a restart", _read_again(len(self.looks)))

    @property
    def health(self) -> AccessHealth | None:
        """The health of the tokens; None if they do not come from anywhere."""
        if not self.problems:
            return None
        problem = next((found for each in self.problems if (found := each()) is not None), None)
        return AccessHealth("ok" if problem is None else "degraded", problem)


def _read_again(files: int) -> str:
    return "no file of tokens or keys is in use" if not files else "the files of tokens and keys were read again"


def check_access(config: GatewayConfig, principal: Principal = LOCAL) -> None:
    """Raise InvalidParamsError if the access rules cannot be followed.

    That is so if others could connect without a token, if a file of tokens or keys is bad, and if tokens would give
    their clients other rights than those of the principal whose service is served.
    """
    config.check_exposure()
    if principal != LOCAL and (way := config.lets_in_by) is not None:
        why = "tokens have principals of their own, and this service is bound to one: serve the one without `as_`"
        raise InvalidParamsError.at(f"$.{way}", why)
    if config.token_table:
        if config.token is not None or config.token_file is not None:
            other = "a single token" if config.token_file is None else "a file of tokens"
            raise InvalidParamsError.at(FIELD, f"and {other} exclude each other")
        _database_of(config)
    if config.token_file is not None:
        if config.token is not None:
            raise InvalidParamsError.at(ROOT, "and a single token exclude each other")
        _tokens_of(config.token_file).load()
    if config.jwt is not None:
        if problem := missing("jwt", "JWTs need"):
            raise InvalidParamsError.at(JWT, problem)
        from warren.transport.access import jwt_verifier  # noqa: PLC0415 - it has an extra of its own

        if not is_url(config.jwt.keys):
            WatchedFile(Path(config.jwt.keys), jwt_verifier.read_keys, jwt_verifier.FIELD).load()


@asynccontextmanager
async def open_access(
    config: GatewayConfig,
    principal: Principal = LOCAL,
    proves_node: Callable[[str], str | None] | None = None,
    note: Note = lambda _entry: None,
    note_tokens: Note = lambda _entry: None,
) -> AsyncIterator[Access]:
    """Open the access rules of a gateway for a body: meanwhile files and keys are read again when they change.

    Args:
        config: the settings.
        principal: that of the service: every client without a token is it.
        proves_node: see AccessPolicy.
        note: gets the entries of the audit about clients that are not let in, and those of operators in other tenants.
        note_tokens: gets those about tokens that come or go.

    Raises InvalidParamsError as `check_access`.
    """
    check_access(config, principal)
    tokens = None if config.token is None else single(config.token)
    authenticator = Authenticator(tokens, unnamed=Login(principal))
    limits = {} if config.runtime is None else config.runtime.tenants
    noted = partial(_noted, note)
    policy = AccessPolicy(authenticator, config.pages, config.host, proves_node, noted, config.public_host)
    places = Places.of(config, lambda: authenticator.is_alone)
    access = Access(policy, Stays(authenticator), Paces(limits), places)
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        if config.token_file is not None:
            _follow_tokens(config.token_file, access, note_tokens, nursery)
        if config.token_table:  # the database notes its changes
            await _follow_table(_database_of(config), access, nursery)
        if config.jwt is not None:
            await _follow_keys(config.jwt, access, nursery, stack)
        nursery.start_soon(access.stays.run)
        yield access
        nursery.cancel_scope.cancel()


def _database_of(config: GatewayConfig) -> PostgresConfig:
    store = None if config.runtime is None else config.runtime.store
    if not isinstance(store, PostgresConfig):
        raise InvalidParamsError.at(FIELD, IN_FILES)
    return store


async def _follow_table(store: PostgresConfig, access: Access, nursery: trio.Nursery) -> None:
    authenticator, table = access.policy.authenticator, WatchedTable(store)
    authenticator.tokens = {}  # until the table is read nobody is let in
    access.problems.append(lambda: table.problem)
    await nursery.start(table.follow, authenticator.use)


def _tokens_of(path: Path) -> WatchedFile[Mapping[bytes, Login]]:
    return WatchedFile(path, read_logins, ROOT)


def _noted(
    note: Note, principal: Principal | None, action: Action, outcome: Outcome, details: Mapping[str, str]
) -> None:
    who, tenant, by = ("", None, None) if principal is None else (principal.name, principal.tenant, by_of(principal))
    note(AuditEntry(at=utc_now(), action=action, who=who, tenant=tenant, by=by, outcome=outcome, details=details))


def token_changes(before: Mapping[bytes, Login], after: Mapping[bytes, Login]) -> Iterator[AuditEntry]:
    """Yield the entries of the audit about a list of tokens that takes the place of another one."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        action: Action = "token_added" if old is None else "token_removed" if new is None else "token_changed"
        login = new or old
        if login is not None and (old is None or new is None or _rights(old) != _rights(new)):
            principal = login.principal
            details = {"name": principal.name, "scopes": " ".join(sorted(principal.scopes))}
            if limits := principal.limits.given():
                details["limits"] = " ".join(f"{limit}={most}" for limit, most in sorted(limits.items()))
            if login.expires is not None:
                details["expires"] = datetime.fromtimestamp(login.expires, UTC).isoformat()
            yield AuditEntry(at=utc_now(), action=action, who="", tenant=principal.tenant, details=details)


def _rights(login: Login) -> tuple[Principal, float | None]:
    return login.principal, login.expires


def _follow_tokens(path: Path, access: Access, note: Note, nursery: trio.Nursery) -> None:
    authenticator, file = access.policy.authenticator, _tokens_of(path)

    def use(tokens: Mapping[bytes, Login]) -> str:
        changes = () if authenticator.tokens is None else tuple(token_changes(authenticator.tokens, tokens))
        for entry in changes:
            note(entry)
        authenticator.use(tokens)
        return ", ".join(f"{each.action} {each.tenant}/{each.details['name']}" for each in changes) or "no change"

    use(file.load())
    access.looks.append(partial(file.look_again, use))
    access.problems.append(lambda: file.problem)
    nursery.start_soon(file.follow, use)


async def _follow_keys(config: JwtConfig, access: Access, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
    from warren.transport.access.jwt_verifier import FIELD, JwtVerifier, RemoteKeys, SigningKey, read_keys  # noqa: PLC0415 - as above

    access.policy.authenticator.verifier = verifier = JwtVerifier(config)
    if is_url(config.keys):
        http = await stack.enter_async_context(httpx.AsyncClient())
        remote = RemoteKeys(config.keys, http, verifier.use)
        verifier.refresh = remote.refresh
        access.problems.append(lambda: remote.problem)
        nursery.start_soon(remote.follow)
    else:
        file = WatchedFile(Path(config.keys), read_keys, FIELD)

        def use(keys: Sequence[SigningKey]) -> str:
            verifier.use(keys)
            return f"{len(keys)} keys"

        use(file.load())
        access.looks.append(partial(file.look_again, use))
        access.problems.append(lambda: file.problem)
        nursery.start_soon(file.follow, use)
