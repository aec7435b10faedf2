"""`Call`, a request to a runtime as a value, how it is made of arguments, and `Performer`, whatever carries it out."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, get_args, get_origin

import attrs

from warren.base.fields import FieldValueError, is_text
from warren.base.principals import Scope
from warren.base.values import frozen
from warren.conversation.aliases import resolved
from warren.conversation.categories import Switches
from warren.conversation.peers import Peer
from warren.reports.audit import Action

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
MAX_PAGE: Final = 1_000
MAX_OFFSET: Final = 2**53
"""Clients whose numbers are all floats cannot count exactly beyond it."""
_PARTS: Final[Mapping[str, type]] = {"overrides": Switches, "peer": Peer}
"""Options with parts that have an alias."""
Capability = Literal["session-store", "session-compaction", "memory-store"]
At = Literal["here", "session", "session or store", "any node"]
"""The node that carries a call out.

`here` is the node that was asked. `session` is the node that has the session in memory. So is `session or store`, but
if that node cannot be reached, the store knows enough. `any node` is the one that has room.
"""


@frozen(kw_only=True)
class Facts:
    """The facts about one class of calls that all layers and surfaces use.

    Attributes:
        name: the name on the wire, as `session/fork`.
        doc: one line for people.
        scope: the right that the caller needs; None if it needs none.
        at: the node that carries it out.
        begins: whether it begins work, which a node that is about to end does not take.
        finds: whether its session has to be there, and of the caller's tenant, before anything else happens.
        repeatable: whether a client sends it again if it does not know whether it was carried out.
        urgent: whether it is accepted when too many other calls are unanswered.
        bulky: whether the result may be large. A connection runs few such calls at once, and none while its client has
            much to read.
        costly: whether it costs much, or waits long, and is in vain without its client: it ends if the client leaves.
        audited: the action that the audit has of a refused call; None if it has none.
        needs: the capability that it needs, at least for sessions that are not in memory.
        wraps: the class of the answer on the wire, whose one member is the result; None if the result is the answer.
        params: the class of the parameters on the wire; None if that is the call's own.
    """

    name: str
    doc: str
    scope: Scope | None
    at: At = "here"
    begins: bool = False
    finds: bool = False
    repeatable: bool = False
    urgent: bool = False
    bulky: bool = False
    costly: bool = False
    audited: Action | None = None
    needs: Capability | None = None
    wraps: type[Any] | None = None
    params: type[Any] | None = None


class Call(Generic[R]):
    """The base class of all calls: the result of a `class Fork(Call[SessionView])` is a SessionView.

    A call is a frozen attrs class. Its fields are the parameters on every surface, and their validators the only check
    of them: whoever holds a call holds good parameters.

    Attributes:
        facts: what is the same of all calls of the class.
    """

    __slots__ = ()
    facts: ClassVar[Facts]

    @property
    def audited(self) -> Action | None:
        """The action that the audit has of the call if it is refused; None if it has none."""
        return self.facts.audited

    def answer(self, result: R) -> Any:
        """Return the answer on the wire."""
        wraps = self.facts.wraps
        return result if wraps is None else wraps(True if result is None else result)


@frozen
class SessionRef:
    """A session, by its id.

    Attributes:
        session_id: the session.
    """

    session_id: str = attrs.field(validator=is_text)


class Performer(Protocol):
    """Carries calls out: a runtime, a client of one, or a layer in front of either."""

    async def perform(self, call: Call[R]) -> R:
        """Return the result of a call. Raises WarrenError."""


def result_of(cls: type[Call[Any]]) -> Any:
    """Return the type of the results of a class of calls."""
    bases = (base for each in cls.__mro__ for base in vars(each).get("__orig_bases__", ()))
    return next(get_args(base)[0] for base in bases if get_origin(base) is Call)


def answer_of(cls: type[Call[Any]]) -> Any:
    """Return the class of the answers on the wire of a class of calls."""
    return cls.facts.wraps or result_of(cls)


def unwrapped(cls: type[Call[R]], answer: Any) -> R:
    """Return the result that an answer on the wire, as an object, has for a class of calls."""
    result: R
    if cls.facts.wraps is None:
        result = answer
    else:
        (result,) = attrs.astuple(answer, recurse=False)
    return result


def made(cls: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
    """Return the value of these arguments, some of them under aliases.

    Raises InvalidParamsError that names the bad field if the value refuses them, and TypeError for arguments that it
    does not have.
    """
    try:
        return cls(*args, **kwargs)
    except FieldValueError as exc:
        raise exc.refusal() from None
    except TypeError:
        paths: Mapping[str, str] = getattr(cls, "ALIASES", {})
        if paths.keys().isdisjoint(kwargs):
            raise
        arguments: Any = _without_aliases(kwargs, paths)
        try:
            return cls(*args, **arguments)
        except FieldValueError as exc:
            raise exc.refusal() from None


def _without_aliases(given: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return keywords under their own names. Raises InvalidParamsError that names the bad one."""
    from warren.conversation import codec  # noqa: PLC0415 - few callers use aliases

    parts = {paths[alias].partition(".")[0] for alias in given.keys() & paths.keys()} & _PARTS.keys()
    data = {**given, **{name: codec.to_data(given[name]) for name in parts & given.keys()}}
    try:
        found = resolved(data, paths)
        return {**found, **{name: codec.from_data(_PARTS[name], found[name], root=f"$.{name}") for name in parts}}
    except FieldValueError as exc:
        raise exc.refusal() from None
