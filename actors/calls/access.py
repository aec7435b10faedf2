"""The rights of a caller: the check of its scopes, and of the tenant of the session that it names."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NoReturn, Protocol, TypeVar

from warren.base.errors import PermissionDeniedError
from warren.base.principals import SCOPE_OF, Principal, Scope

R = TypeVar("R")


class Bound(Protocol):
    """A service of one principal."""

    @property
    def principal(self) -> Principal:
        """The principal of all calls."""
        ...

    def note_denied(self, method: str, value: Any) -> None:
        """Add a call without its scope to the audit, if calls of that method are audited."""
        ...


class Guarded(Bound, Protocol):
    """A service of one principal that finds only the sessions of its tenant."""

    def has_live(self, session_id: str) -> bool:
        """Return whether a live session is known to be the tenant's."""
        ...

    async def find(self, session_id: str) -> None:
        """Raise SessionNotFoundError if a session is not the tenant's, or there is none."""
        ...


class OfSession(Protocol):
    """The arguments of a method about one session."""

    @property
    def session_id(self) -> str:
        """The session."""
        ...


B = TypeVar("B", bound=Bound)
G = TypeVar("G", bound=Guarded)
V = TypeVar("V")
O = TypeVar("O", bound=OfSession)  # noqa: E741


def scoped(method: Callable[[B, V], Coroutine[Any, Any, R]]) -> Callable[[B, V], Coroutine[Any, Any, R]]:
    """Let a method run only for principals that have its scope. Awaiting the call raises PermissionDeniedError else."""
    scope = SCOPE_OF[method.__name__]

    @wraps(method)
    def call(self: B, value: V) -> Coroutine[Any, Any, R]:
        if scope is not None and scope not in self.principal.scopes:
            self.note_denied(method.__name__, value)
            return _denied(scope)
        return method(self, value)

    return call


def guarded(method: Callable[[G, O], Coroutine[Any, Any, R]]) -> Callable[[G, O], Coroutine[Any, Any, R]]:
    """Let a method run only for principals that have its scope, and about sessions of their tenant.

    A session of another tenant is not found, by the same way as an unknown one: one look-up in the store. A live
    session of the tenant costs no wait.
    """
    scope = SCOPE_OF[method.__name__]

    @wraps(method)
    def call(self: G, value: O) -> Coroutine[Any, Any, R]:
        if scope is not None and scope not in self.principal.scopes:
            self.note_denied(method.__name__, value)
            return _denied(scope)
        if self.has_live(value.session_id):
            return method(self, value)
        return _found(method, self, value)

    return call


async def _found(method: Callable[[G, O], Coroutine[Any, Any, R]], itself: G, value: O) -> R:
    await itself.find(value.session_id)
    return await method(itself, value)


def check_scope(principal: Principal, method: str) -> None:
    """Raise PermissionDeniedError if a principal does not have the scope of a method."""
    scope = SCOPE_OF[method]
    if scope is not None:
        check_right(principal, scope)


def check_right(principal: Principal, scope: Scope) -> None:
    """Raise PermissionDeniedError if a principal does not have a scope."""
    if scope not in principal.scopes:
        raise lacks(scope)


async def _denied(scope: Scope) -> NoReturn:
    raise lacks(scope)


def lacks(scope: Scope) -> PermissionDeniedError:
    """Return the error for a principal without a scope."""
    return PermissionDeniedError(f"this needs the scope {scope}", details={"scope": scope})
