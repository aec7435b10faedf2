"""Checks of what callers pass, with errors that name the field."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from warren import codec
from warren.actors.eventlog import EventLog
from warren.errors import InvalidParamsError, PersistenceDisabledError
from warren.memory import MAX_HITS
from warren.tools import Tool

V = TypeVar("V")
SCOPES: Final = ("session", "project")
MAX_PAGE: Final = 1_000
MAX_OFFSET: Final = 2**53
"""Beyond it a JSON client cannot count exactly."""


def check_text(value: str | None, name: str) -> str | None:
    """Return a text that UTF-8 can hold, or None."""
    return None if value is None else codec.from_data(str, value, root=f"$.{name}")


def check_name(value: str | None, name: str) -> str | None:
    """Return a text with something in it, or None."""
    if value is not None and not codec.from_data(str, value, root=f"$.{name}").strip():
        raise _bad(name, "must not be empty")
    return value


def storable(text: str) -> str:
    """Return a text of the host's code with what UTF-8 cannot hold replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def check_value(value: V | None, cls: type[V], name: str) -> V | None:
    """Return a value object of that class, or None."""
    if value is not None and not isinstance(value, cls):
        raise _bad(name, f"must be a {cls.__name__}")
    return value


def check_id(session_id: str) -> str:
    """Return a session id; whether it exists is another question."""
    return codec.from_data(str, session_id, root="$.session_id")


def check_prompt(prompt: str) -> str:
    """Return a prompt with something in it: providers refuse an empty message, and then every later one."""
    if not codec.from_data(str, prompt, root="$.prompt").strip():
        raise _bad("prompt", "must not be empty")
    return prompt


def check_count(value: int | None, name: str) -> int | None:
    """Return a number above 0, or None."""
    if value is not None and codec.from_data(int, value, root=f"$.{name}") <= 0:
        raise _bad(name, "must be above 0")
    return value


def check_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return labels: texts under texts."""
    if labels is not None and not isinstance(labels, Mapping):
        raise _bad("labels", "must be an object")
    found: Mapping[str, str] = codec.from_data(dict[str, str], dict(labels or {}), root="$.labels")
    for key in found:
        codec.from_data(str, key, root="$.labels")
    return found


def check_page(offset: int, limit: int) -> None:
    """Refuse a page that cannot be."""
    if not 0 <= codec.from_data(int, offset, root="$.offset") <= MAX_OFFSET:
        raise _bad("offset", f"must be from 0 to {MAX_OFFSET}")
    if not 1 <= codec.from_data(int, limit, root="$.limit") <= MAX_PAGE:
        raise _bad("limit", f"must be from 1 to {MAX_PAGE}")


def check_search(query: str, session_id: str | None, scope: str, limit: int) -> None:
    """Refuse a search of the memory that cannot be."""
    if not codec.from_data(str, query, root="$.query").strip():
        raise _bad("query", "must not be empty")
    if scope not in SCOPES:
        raise _bad("scope", f"must be one of {', '.join(SCOPES)}")
    if scope == "session" and session_id is None:
        raise _bad("session_id", "is required to search one session; or search the project")
    if session_id is not None:
        check_id(session_id)
    if not 1 <= codec.from_data(int, limit, root="$.limit") <= MAX_HITS:
        raise _bad("limit", f"must be from 1 to {MAX_HITS}")


def check_tools(tools: Sequence[str | Tool] | None, known: Collection[str]) -> tuple[str, ...] | None:
    """Return the tools' names; None stands for all that the runtime has."""
    if tools is None:
        return None
    names = tuple(tool.spec.name if isinstance(tool, Tool) else tool for tool in tools)
    for index, name in enumerate(names):
        if name not in known:
            raise _bad(f"tools[{index}]", f"there is no tool {name!r}")
    return names


def check_cursor(log: EventLog, after_seq: int) -> int:
    """Return a place in the log to read on from."""
    if not 0 <= codec.from_data(int, after_seq, root="$.after_seq") <= log.last_seq:
        raise _bad("after_seq", f"must be from 0 to {log.last_seq}, the log's end")
    if log.read_stored is None and after_seq < log.journal.floor:
        raise PersistenceDisabledError(
            f"events up to {log.journal.floor} are gone and no store has them", session_id=log.session_id
        )
    return after_seq


def _bad(name: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"$.{name}: {problem}", path=f"$.{name}")
