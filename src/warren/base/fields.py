"""Validators for the fields of attrs classes. Their errors name the field."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.values import check_of, frozen

LARGEST: Final = 2**63 - 1
CAN_CONFLICT: Final[Mapping[str, bool]] = {"can_conflict": True}
"""Metadata of a field whose good values may still not fit the runtime or the session, such as a name that is taken."""
LEFT_OUT: Final[Mapping[str, bool]] = {"left_out": True}
"""Metadata of a field that results do not show at its default, although they show all other fields of its class."""
IN_PROCESS: Final[Mapping[str, bool]] = {"in_process": True}
"""Metadata of a field that only a caller in the same process can give: data from outside does not have it."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The names of agents and skills."""
FORM: Final = "form"
"""Metadata of a field: the type of its data from outside, where a caller in the same process may give more."""
# A scheme and a slash, or a scheme of databases alone: `sqlite:x.db` would be made as a folder of that name.
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+(?=:/)|sqlite3?|file|postgres(?:ql)?):", re.IGNORECASE)


class FieldValueError(ValueError):
    """A field's value is out of range; `field` is its name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem

    def refusal(self, root: str = "$") -> InvalidParamsError:
        """Return the error that callers of the runtime get; its path names the field below a root."""
        return InvalidParamsError.at(f"{root}.{self.field}", self.problem)


def positive(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse zero, negative numbers and values that are not numbers; None passes."""
    if value is not None and not (_is_number(value) and value > 0):
        raise FieldValueError(attribute.name, "must be above 0")


def not_negative(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse negative numbers and values that are not numbers; None passes."""
    if value is not None and not (_is_number(value) and value >= 0):
        raise FieldValueError(attribute.name, "must be 0 or above")


@frozen
class OfType:
    """Refuse values that are not of one type exactly.

    Attributes:
        type: the type.
        words: the name of the type in errors, such as "a string".
    """

    type: type
    words: str

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the type."""
        if type(value) is not self.type:
            raise FieldValueError(attribute.name, f"must be {self.words}")


@frozen
class OneOf:
    """Refuse values that are not one of the `choices`."""

    choices: tuple[str, ...]

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the choices."""
        if not isinstance(value, str) or value not in self.choices:
            raise FieldValueError(attribute.name, f"must be one of {', '.join(self.choices)}")


@frozen
class Between:
    """Refuse numbers outside of `low` to `high`, and values that are not numbers; None passes.

    Attributes:
        low: the smallest number.
        high: the largest number.
        without_low: whether `low` itself is refused.
    """

    low: int
    high: int
    without_low: bool = False

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the range."""
        if value is None or (_is_number(value) and self.low <= value <= self.high and self._is_above(value)):
            return
        bounds = f"above {self.low}, and at most {self.high}" if self.without_low else f"from {self.low} to {self.high}"
        raise FieldValueError(attribute.name, f"must be {bounds}")

    def _is_above(self, value: float) -> bool:
        return value > self.low or not self.without_low


@frozen
class AtMost:
    """Refuse texts of more than `characters`; None passes."""

    characters: int

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
        """Raise FieldValueError that names the field and the bound."""
        if value is not None and len(value) > self.characters:
            raise FieldValueError(attribute.name, f"must have at most {self.characters} characters")


@frozen
class Each:
    """Refuse lists with a value, and mappings with a key, that a function does not take; None passes.

    Attributes:
        good: returns something true for a good value.
        problem: the problem in errors, with `{}` for the value.
    """

    good: Callable[[Any], object]
    problem: str

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Iterable[Any] | None) -> None:
        """Raise FieldValueError that names the field and the first bad value."""
        for each in value or ():
            if not self.good(each):
                raise FieldValueError(attribute.name, self.problem.format(repr(each)))


def check_types(value: attrs.AttrsInstance) -> None:
    """Hold the fields of an attrs class against their annotations; those that are texts are passed over.

    Raises FieldValueError that names the field and its type.
    """
    for field in attrs.fields(type(value)):
        if not isinstance(field.type, str) and not _is_a(field.type, getattr(value, field.name)):
            raise FieldValueError(field.name, f"must be {_in_words(field.type)}")


def _is_a(kind: Any, value: object) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return any(_is_a(each, value) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is None:
        return kind is Any or (_is_number(value) if kind is float else isinstance(value, kind))
    if not isinstance(value, origin):
        return False
    if isinstance(value, Mapping):
        return all(_is_a(inner[0], key) and _is_a(inner[1], each) for key, each in value.items())
    return not isinstance(value, tuple) or all(_is_a(inner[0], each) for each in value)


def _in_words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return " or ".join(_in_words(each) for each in inner)
    if origin is None:
        return "None" if kind is NoneType else str(kind.__name__)
    return f"{origin.__name__} of {' and '.join(each.__name__ for each in inner if each is not ...)}"


@frozen
class InstanceOf:
    """Refuse values that are not instances of a class; None passes."""

    type: type

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the class."""
        if value is not None and not isinstance(value, self.type):
            raise FieldValueError(attribute.name, f"must be a {self.type.__name__}")


def optional(*checks: Callable[[Any, "attrs.Attribute[Any]", Any], Any]) -> Callable[..., Any]:
    """Return the validator that lets None pass and any other value through the checks."""
    return attrs.validators.optional(checks)


def is_text(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than texts that UTF-8 can hold."""
    if not (type(value) is str and value.isascii()) and (problem := text_problem(value)) is not None:
        raise FieldValueError(attribute.name, problem)


def is_name(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than names of letters, digits, `-` and `_`."""
    if type(value) is not str or not NAME.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 letters, digits, `-` and `_`, and begin with no mark")


def is_moment(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that are not a time with a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise FieldValueError(attribute.name, "must be a time with a time zone")


def text_problem(value: object) -> str | None:
    """Return why a value cannot be taken as a text, None if it can."""
    if type(value) is not str:
        return "must be a string"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "has a lone surrogate, which UTF-8 cannot hold"
    return None


def encodable(text: str) -> str:
    """Return a text of foreign code, with the characters replaced that UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_object(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than mappings; None passes."""
    if value is not None and not isinstance(value, Mapping):
        raise FieldValueError(attribute.name, "must be an object")


def is_json(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse mappings that JSON in UTF-8 cannot hold; None passes."""
    try:
        if value is not None:
            json.dumps(dict(value), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise FieldValueError(attribute.name, f"cannot be written as JSON: {exc}") from None


MAX_LABELS: Final = 64
MAX_LABEL_BYTES: Final = 16 * 1024
"""Bytes of all labels of a session, with their names."""


def labels_problem(labels: Mapping[str, str | None], before: Mapping[str, str]) -> str | None:
    """Return why a session cannot have so many or so large labels, None if it can. A label of None counts, too.

    `before` are those that it has had: a store may have more than the bounds, and as many may stay.
    """
    if len(labels) > max(MAX_LABELS, len(before)):
        return f"must be at most {MAX_LABELS} labels, and these are {len(labels)}"
    size = _bytes_of(labels)
    if size > MAX_LABEL_BYTES and size > _bytes_of(before):
        return f"must have at most {MAX_LABEL_BYTES} bytes, and have {size}"
    return None


def _bytes_of(labels: Mapping[str, str | None]) -> int:
    return sum(len(text.encode()) for pair in labels.items() for text in pair if text is not None)


@frozen
class Labels:
    """Refuse values other than texts under texts, and more of them than a session may have; None passes.

    Attributes:
        removable: whether None may stand under a text, which takes that label away.
    """

    removable: bool = False

    def __call__(self, instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field, or the label whose value is bad."""
        is_object(instance, attribute, value)
        for key, text in islice((value or {}).items(), MAX_LABELS):
            if (problem := text_problem(key)) is not None:
                raise FieldValueError(attribute.name, problem)
            if not (text is None and self.removable) and (problem := text_problem(text)) is not None:
                raise FieldValueError(f"{attribute.name}.{key}", problem)
        if (problem := labels_problem(value or {}, {})) is not None:
            raise FieldValueError(attribute.name, problem)


is_whole: Final = OfType(int, "an integer")
is_flag: Final = OfType(bool, "true or false")


def not_blank(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a text with nothing but white space; None passes."""
    if value is not None and not value.strip():
        raise FieldValueError(attribute.name, "must not be empty")


def url_problem(path: str) -> str | None:
    """Return the problem of a path that is a URL, or None. The problem does not repeat secrets in the URL."""
    # One slash is enough: that is all that pathlib leaves of two. A drive of Windows has one letter, a scheme more.
    found = _URL.match(path)
    return None if found is None else f"is a URL ({found[1]}:…), and has to be a folder"


def no_url(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a URL as a folder, as it would be created as a folder of that name; None passes."""
    problem = None if value is None else url_problem(str(value))
    if problem is not None:
        raise FieldValueError(attribute.name, problem)


def fits(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse numbers above `LARGEST`, which neither SQLite nor float arithmetic can hold; None passes."""
    if value is not None and value > LARGEST:
        raise FieldValueError(attribute.name, f"must be at most {LARGEST}")


def checks_of(field: "attrs.Attribute[Any]") -> Sequence[Callable[..., Any]]:
    """Return a field's validators; attrs puts several, and those that let None pass, into one object."""
    check = check_of(field)
    inner = getattr(check, "validator", check)
    together = getattr(inner, "_validators", None)
    return together if together is not None else [inner] if inner is not None else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
