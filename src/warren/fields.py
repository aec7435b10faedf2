"""Validators for the fields of attrs classes. Their errors name the field."""

import re
from typing import Any, Final

import attrs

LARGEST: Final = 2**63 - 1
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)


class FieldValueError(ValueError):
    """A field's value is out of range; `field` is its name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def positive(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse zero, negative numbers and values that are not numbers; None passes."""
    if value is not None and not (_is_number(value) and value > 0):
        raise FieldValueError(attribute.name, "must be above 0")


def not_negative(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse negative numbers and values that are not numbers; None passes."""
    if value is not None and not (_is_number(value) and value >= 0):
        raise FieldValueError(attribute.name, "must be 0 or above")


@attrs.frozen
class OfType:
    """Refuse values that are not of one type exactly; None passes unless it is `required`.

    Attributes:
        type: the type.
        words: the name of the type in errors, such as "a string".
        required: whether None is refused.
    """

    type: type
    words: str
    required: bool = True

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the type."""
        if type(value) is not self.type and (value is not None or self.required):
            raise FieldValueError(attribute.name, f"must be {self.words}")


@attrs.frozen
class OneOf:
    """Refuse values that are not one of the `choices`."""

    choices: tuple[str, ...]

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the choices."""
        if not isinstance(value, str) or value not in self.choices:
            raise FieldValueError(attribute.name, f"must be one of {', '.join(self.choices)}")


@attrs.frozen
class Between:
    """Refuse whole numbers outside of `low` to `high`, both included; None passes."""

    low: int
    high: int

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise FieldValueError that names the field and the range."""
        if value is not None and not (_is_number(value) and self.low <= value <= self.high):
            raise FieldValueError(attribute.name, f"must be from {self.low} to {self.high}")


is_text: Final = OfType(str, "a string")
is_text_or_none: Final = OfType(str, "a string", required=False)
is_whole: Final = OfType(int, "an integer")
is_whole_or_none: Final = OfType(int, "an integer", required=False)
is_flag: Final = OfType(bool, "true or false")


def not_blank(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a text with nothing but white space; None passes."""
    if value is not None and not value.strip():
        raise FieldValueError(attribute.name, "must not be empty")


def url_problem(path: str) -> str | None:
    """Return the problem of a path that is a URL, or None. The problem does not repeat secrets in the URL."""
    # One slash is enough: that is all that pathlib leaves of two. A drive of Windows has one letter, a scheme more.
    found = _URL.match(path)
    return None if found is None else f"is a URL ({found[1]}://…), and has to be a folder"


def no_url(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a URL as a folder, as it would be created as a folder of that name; None passes."""
    problem = None if value is None else url_problem(str(value))
    if problem is not None:
        raise FieldValueError(attribute.name, problem)


def fits(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse numbers above `LARGEST`, which neither SQLite nor float arithmetic can hold; None passes."""
    if value is not None and value > LARGEST:
        raise FieldValueError(attribute.name, f"must be at most {LARGEST}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
