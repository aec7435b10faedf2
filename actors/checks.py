"""Checks of what callers pass, with errors that name the field."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from warren import codec
from warren.actors.eventlog import EventLog
from warren.compaction.config import CompactionConfig
from warren.compaction.policy import Compactor, NewCompactor, compactor_of
from warren.errors import InvalidParamsError
from warren.memory import MAX_HITS
from warren.options import MAX_KEY, MAX_TITLE
from warren.tools import Tool

V = TypeVar("V")
L = TypeVar("L", dict[str, str], dict[str, str | None])
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


def check_title(value: str | None) -> str | None:
    """Return a session's title, or None."""
    if check_name(value, "title") is not None and len(value or "") > MAX_TITLE:
        raise _bad("title", f"must have at most {MAX_TITLE} characters")
    return value


def storable(text: str) -> str:
    """Return a text of the host's code with what UTF-8 cannot hold replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def check_given(value: V, cls: type[V], name: str) -> V:
    """Return a value object of that class that can be stored: texts that UTF-8 can hold, and data that JSON can."""
    if not isinstance(value, cls):
        raise _bad(name, f"must be a {cls.__name__}")
    given = codec.from_data(cls, codec.to_data(value), root=f"$.{name}")
    try:
        codec.encode(given)
    except (TypeError, ValueError) as exc:
        raise _bad(name, f"cannot be written as JSON: {exc}") from None
    return given


def check_id(session_id: str) -> str:
    """Return a session id; whether it exists is another question."""
    return codec.from_data(str, session_id, root="$.session_id")


def check_words(words: str, name: str) -> str:
    """Return a text with something in it: providers refuse an empty message, and then every later one."""
    if not codec.from_data(str, words, root=f"$.{name}").strip():
        raise _bad(name, "must not be empty")
    return words


def check_key(key: str | None) -> str | None:
    """Return an idempotency key, or None."""
    if check_name(key, "idempotency_key") is not None and len(key or "") > MAX_KEY:
        raise _bad("idempotency_key", f"must have at most {MAX_KEY} characters")
    return key


def check_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return labels: texts under texts."""
    return _labels(dict[str, str], {} if labels is None else labels)


def check_changes(labels: Mapping[str, str | None] | None) -> Mapping[str, str | None]:
    """Return changes of labels: texts, or None, under texts."""
    return _labels(dict[str, str | None], {} if labels is None else labels)


def _labels(kind: type[L], labels: Mapping[str, str | None]) -> L:
    if not isinstance(labels, Mapping):
        raise _bad("labels", "must be an object")
    try:
        codec.from_data(list[str], list(labels))
    except InvalidParamsError as exc:
        raise _bad("labels", exc.message.partition(": ")[2]) from None
    return codec.from_data(kind, dict(labels), root="$.labels")


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
    if session_id is not None:
        check_id(session_id)
    if not 1 <= codec.from_data(int, limit, root="$.limit") <= MAX_HITS:
        raise _bad("limit", f"must be from 1 to {MAX_HITS}")


def check_scope(session_id: str | None, scope: str) -> str | None:
    """Return the session to search, None for all of them."""
    if scope == "project":
        return None
    if session_id is None:
        raise _bad("session_id", "is required to search one session; or search the project")
    return session_id


def check_flag(value: bool, name: str) -> bool:  # noqa: FBT001 - it is the value to look at
    """Return a truth value that is one: "false" would stand for the opposite."""
    return codec.from_data(bool, value, root=f"$.{name}")


def check_compactor(compactor: Compactor | NewCompactor | None, config: CompactionConfig | None) -> None:
    """Refuse a compactor that cannot work with a session's settings."""
    try:
        compactor_of(compactor, config or CompactionConfig(), None)
    except Exception as exc:  # a host's own code may raise anything
        raise _bad("compactor", storable(f"cannot be used: {exc}")) from exc


def by_name(tools: Sequence[str | Tool]) -> dict[str, Tool]:
    """Return the tools themselves of a list of tools and names."""
    return {tool.spec.name: tool for tool in tools if isinstance(tool, Tool)}


def names_of(tools: Sequence[str | Tool] | None, known: Collection[str]) -> tuple[str, ...] | None:
    """Return the names of tools, of which all have to be known; None stands for all that the runtime has."""
    if tools is None:
        return None
    names = tuple(tool.spec.name if isinstance(tool, Tool) else tool for tool in tools)
    for index, name in enumerate(names):
        if name not in known:
            raise _bad(f"tools[{index}]", f"there is no tool {name!r}")
    return names


def check_seq(after_seq: int | None) -> int | None:
    """Return the number of an event, or None; whether the log has it is another question."""
    return None if after_seq is None else codec.from_data(int, after_seq, root="$.after_seq")


def check_cursor(log: EventLog, after_seq: int) -> int:
    """Return a place in the log to read on from."""
    if not 0 <= after_seq <= max(log.last_seq, log.bound):
        raise _bad("after_seq", f"must be from 0 to {log.last_seq}, the log's end")
    return after_seq


def _bad(name: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"$.{name}: {problem}", path=f"$.{name}")
