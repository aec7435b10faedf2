"""Python types as JSON: the schema of a type, and its values made of data."""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import UnionType
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec

from warren.base.values import frozen

T = TypeVar("T")
_UNIONS: Final = (Union, UnionType)
_REFERENCE: Final = "#/$defs/"


@frozen
class TypedShape(Generic[T]):
    """A type, as JSON has its values.

    Attributes:
        name: the name of the type.
        schema: the JSON schema of its values.
    """

    name: str
    schema: Mapping[str, Any]
    _make: Callable[[Any], T]

    def decode(self, data: Any) -> T:
        """Return the value of the type that plain data stands for.

        Validators of the type's classes run. Raises ValueError, whose text names the bad field and is for the model.
        """
        try:
            return self._make(data)
        except ValueError:
            raise
        except Exception as exc:
            raise ValueError(str(exc) or type(exc).__name__) from exc


def described(annotation: Any) -> TypedShape[Any]:
    """Return the shape of a type. It is made once for each type.

    The type may be a class of attrs, pydantic or msgspec, a dataclass, a TypedDict, a type of the standard library such
    as `list[int]`, `Literal` or `datetime`, or a union of these. Data becomes the first member of a union of classes
    that it fits.

    Raises:
        TypeError: if values of the type have no form in JSON; the text names the type.
    """
    try:
        hash(annotation)
    except TypeError:  # Annotated with something that has no hash
        return _described(annotation)
    return _known(annotation)


def _described(annotation: Any) -> TypedShape[Any]:
    name = name_of(annotation)
    if not isinstance(annotation, type) and get_origin(annotation) is None and annotation is not Any:
        raise TypeError(f"must be a type, and {annotation!r} is none")
    try:
        schema, make = _of_pydantic(annotation) if is_pydantic(annotation) else _of_msgspec(annotation)
    except Exception as exc:  # pydantic has errors of its own, and both libraries run code of the classes
        problem = str(exc).strip().partition(". ")[0].rpartition("\n")[2]  # the rest is for authors of the libraries
        raise TypeError(f"{name} cannot be described as JSON: {problem}") from exc
    return TypedShape(name, inlined(schema), make)


_known: Final = lru_cache(maxsize=256)(_described)


def name_of(annotation: Any) -> str:
    """Return the name of a type for people."""
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def is_pydantic(annotation: Any) -> bool:
    """Return whether pydantic has to describe a type: a class of its, or a list or a union with one. It is not loaded.

    A program that has such a class has loaded pydantic.
    """
    return hasattr(annotation, "__pydantic_core_schema__") or any(map(is_pydantic, get_args(annotation)))


def is_of_others(annotation: Any) -> bool:
    """Return whether `described` may know a type that msgspec alone does not."""
    return get_origin(annotation) in _UNIONS or is_pydantic(annotation)


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with what its root refers to in the root itself: not all providers take a reference there."""
    if not (reference := str(schema.get("$ref", ""))).startswith(_REFERENCE):
        return dict(schema)
    name = reference.removeprefix(_REFERENCE)
    definitions = dict(schema["$defs"])
    root = {key: value for key, value in definitions[name].items() if key != "title"}
    if not _refers(root, reference) and not any(_refers(each, reference) for each in definitions.values()):
        del definitions[name]
    return root | ({"$defs": definitions} if definitions else {})


def _refers(schema: Any, reference: str) -> bool:
    if isinstance(schema, Mapping):
        return schema.get("$ref") == reference or any(_refers(each, reference) for each in schema.values())
    return isinstance(schema, list) and any(_refers(each, reference) for each in schema)


def _of_pydantic(annotation: Any) -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
    pydantic = cast(Any, sys.modules["pydantic"])
    adapter = pydantic.TypeAdapter(annotation)

    def make(data: Any) -> Any:
        # By way of JSON: only that has the forms of times and bytes also for strict models.
        try:
            return adapter.validate_json(msgspec.json.encode(data))
        except pydantic.ValidationError as exc:
            found = exc.errors(include_url=False, include_context=False, include_input=False)
            raise ValueError("; ".join(f"{_path(each['loc'])}: {each['msg']}" for each in found)) from exc

    return adapter.json_schema(), make


def _path(steps: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _of_msgspec(annotation: Any) -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
    try:
        return msgspec.json.schema(annotation), partial(_converted, annotation)
    except TypeError:
        if get_origin(annotation) not in _UNIONS:
            raise
    members = get_args(annotation)
    # msgspec describes no union of two classes whose data it could not tell apart by a tag.
    schemas, definitions = msgspec.json.schema_components(members)
    return {"anyOf": list(schemas), "$defs": definitions}, partial(_first, [described(each) for each in members])


def _converted(annotation: Any, data: Any) -> Any:
    try:
        return msgspec.convert(data, annotation)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc


def _first(members: list[TypedShape[Any]], data: Any) -> Any:
    problems = []
    for each in members:
        try:
            return each.decode(data)
        except ValueError as exc:
            problems.append(f"{each.name}: {exc}")
    raise ValueError(f"fits none of these: {'; '.join(problems)}")
