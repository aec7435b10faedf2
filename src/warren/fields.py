"""Checks of single fields whose error names the field."""

from typing import Any, Final

import attrs

LARGEST: Final = 2**63 - 1


class FieldValueError(ValueError):
    """A field's value is out of range; `field` is its name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def positive(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse zero, negative numbers and what is no number at all; None passes."""
    if value is not None and not (_is_number(value) and value > 0):
        raise FieldValueError(attribute.name, "must be above 0")


def not_negative(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse negative numbers and what is no number at all; None passes."""
    if value is not None and not (_is_number(value) and value >= 0):
        raise FieldValueError(attribute.name, "must be 0 or above")


def fits(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse numbers above `LARGEST`, for which neither SQLite nor float arithmetic has room; None passes."""
    if value is not None and value > LARGEST:
        raise FieldValueError(attribute.name, f"must be at most {LARGEST}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
