"""Results of turns as instances of the type that a caller has asked for."""

from collections.abc import Callable
from typing import Any

import attrs

from warren.base.errors import AgentError
from warren.base.fields import FieldValueError
from warren.conversation.views import TurnResult, V
from warren.structured.types import TypedShape, described


def shape_of(field: str, annotation: Any) -> TypedShape[Any]:
    """Return the shape of the type in a field. Raises FieldValueError if it cannot be described."""
    try:
        return described(annotation)
    except TypeError as exc:
        raise FieldValueError(field, str(exc)) from None


def ask_for(call: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Have a call that names an output type ask for its schema. Raises FieldValueError.

    It is the validator of the field: so a call without a type costs nothing.
    """
    if value is None:
        return
    if getattr(call, "agent", None) is not None:
        raise FieldValueError(attribute.name, "does not go with `agent`, which has its own")
    schema = shape_of(attribute.name, value).schema
    if call.output_schema not in (None, schema):
        raise FieldValueError(attribute.name, "does not go with `output_schema`")
    object.__setattr__(call, "output_schema", schema)


def typed(shape: TypedShape[V], result: TurnResult) -> TurnResult[V]:
    """Return a result whose `output` is of a type.

    Raises:
        AgentError: with the cause `structured_output`, if the data does not fit. Then the turn ran where the type is
            not known, as at a server, and it is stored.
    """
    if result.stop_reason is None:  # of a session that was created without a turn
        return result
    try:
        return result.with_output(shape.decode(result.structured_output))
    except ValueError as exc:
        problem, details = f"the answer does not fit {shape.name}: {exc}", {"text": result.text, "errors": [str(exc)]}
        raise AgentError(problem, cause="structured_output", session_id=result.session_id, details=details) from exc


def decoder(call: Any) -> Callable[[Any], object]:
    """Return what makes a value of the type that a call names."""
    return described(call.output_type).decode


def with_type(call: Any, result: TurnResult) -> TurnResult:
    """Return the result of a call with an `output` of the type that the call names. Raises as `typed` does."""
    return typed(described(call.output_type), result)
