"""Holding data against a JSON schema that somebody else wrote: nothing is fetched, and no schema takes for ever."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import prod
from typing import Any, Final

import attrs
import referencing.exceptions
import regex  # type: ignore[import-untyped]
from jsonschema import exceptions, validators  # type: ignore[import-untyped]
from referencing import Registry, Specification
from referencing.jsonschema import DRAFT202012, specification_with

from warren.fields import FieldValueError

MAX_WORK: Final = 20_000
"""Keywords looked at in one check. A schema can make them double with every level of it."""
PATTERN_SECONDS: Final = 0.2
"""What all patterns of one check may take. A pattern can try for ever."""
MAX_REPEATS: Final = 10_000
"""Copies of a part that a pattern may ask for: they are made when it is compiled, and groups in groups multiply."""
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
TOO_MUCH: Final = "it takes too much work to check"
_REPEAT: Final = re.compile(r"(\)?)\{(\d{1,9})")
Keyword = Callable[[Any, Any, Any, Any], Any]


class _TooMuchWorkError(Exception):
    """A check that is given up."""


@attrs.define
class _Work:
    """What is left for one check."""

    steps: int = MAX_WORK
    seconds: float = PATTERN_SECONDS

    def begin(self) -> None:
        self.steps, self.seconds = MAX_WORK, PATTERN_SECONDS

    def counted(self, keyword: Keyword) -> Keyword:
        """Return a keyword's check that counts itself."""

        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            self.steps -= 1
            if self.steps < 0:
                raise _TooMuchWorkError
            return keyword(validator, value, instance, schema)

        return check

    def found(self, pattern: str, text: str) -> bool:
        """Tell whether a pattern is somewhere in a text."""
        try:
            return regex.search(pattern, text, timeout=self.seconds) is not None
        except TimeoutError:
            raise _TooMuchWorkError from None

    # The library's own checks of patterns use `re`, which cannot be stopped: these three stand in their place.

    def pattern(self, validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not self.found(pattern, instance):
            yield exceptions.ValidationError(f"{instance!r} does not match {pattern!r}")

    def pattern_properties(self, validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for pattern, inner in patterns.items():
                for name in (name for name in instance if self.found(pattern, name)):
                    yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)

    def additional_properties(self, validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            patterns, known = schema.get("patternProperties", {}), schema.get("properties", {})
            names = (name for name in instance if name not in known)
            for name in names:
                if not any(self.found(pattern, name) for pattern in patterns):
                    yield from _additional(validator, inner, instance, name)


def _additional(validator: Any, inner: Any, instance: Any, name: str) -> Iterator[Any]:
    if inner is False:
        yield exceptions.ValidationError(f"there may be no {name!r}")
    else:
        yield from validator.descend(instance[name], inner, path=name)


@attrs.define
class Checker:
    """Holds data against one schema."""

    _validator: Any
    _work: _Work

    def problems(self, data: Any, most: int) -> list[str]:
        """Return what is wrong, at most so much; each begins with the path of what it is about."""
        self._work.begin()
        try:
            return [f"{error.json_path}: {error.message}" for error in islice(self._validator.iter_errors(data), most)]
        except (_TooMuchWorkError, RecursionError):
            return [TOO_MUCH]
        except Exception as exc:  # noqa: BLE001 - the library raises what it likes on numbers and on odd schemas
            return [f"it cannot be checked: {type(exc).__name__}: {exc}"]


def checker_of(schema: Mapping[str, Any]) -> Checker:
    """Return what holds data against a schema. Raises FieldValueError with the path inside it where it is none."""
    try:
        return _checker_of(dict(schema))
    except FieldValueError:
        raise
    except RecursionError:
        raise FieldValueError("$", TOO_MUCH) from None
    except Exception as exc:
        raise FieldValueError("$", f"is no JSON schema: {type(exc).__name__}: {exc}") from exc


def _checker_of(schema: dict[str, Any]) -> Checker:
    own: Any = validators.validator_for(
        schema, default=None if "$schema" in schema else validators.Draft202012Validator
    )
    if own is None:
        raise FieldValueError("$.$schema", "is no draft that is known here")
    error = next(own(own.META_SCHEMA).iter_errors(schema), None)
    if error is not None:
        raise FieldValueError(error.json_path, error.message)
    dialect = specification_with(str(schema.pop("$schema", "")), default=DRAFT202012)
    _look_through(schema, dialect)
    work = _Work()
    checker = Checker(_guarded(own, work)(schema, registry=Registry()), work)
    if checker.problems({}, 1) == [TOO_MUCH]:
        raise FieldValueError("$", TOO_MUCH)
    return checker


def _guarded(own: Any, work: _Work) -> Any:
    keywords = dict(own.VALIDATORS) | {
        "pattern": work.pattern,
        "patternProperties": work.pattern_properties,
        "additionalProperties": work.additional_properties,
    }
    return validators.extend(own, {name: work.counted(keyword) for name, keyword in keywords.items()})


def _look_through(schema: dict[str, Any], dialect: "Specification[Any]") -> None:
    """Refuse what only shows when it is used: references to elsewhere, bad patterns, other drafts inside."""
    root = dialect.create_resource(schema)
    waiting = [(root, Registry().resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        if isinstance(resource.contents, dict):
            _check_one(resource.contents, resolver)
        inner = (dialect.create_resource(each.contents) for each in resource.subresources())
        waiting += [(each, resolver.in_subresource(each)) for each in inner]


def _check_one(schema: dict[str, Any], resolver: Any) -> None:
    if "$schema" in schema:
        raise FieldValueError("$", "$schema may only stand at the top")
    if "patternProperties" in schema and "unevaluatedProperties" in schema:
        raise FieldValueError("$", "patternProperties and unevaluatedProperties cannot be used together here")
    for name in REFERENCES:
        try:
            resolver.lookup(schema.get(name, "#"))
        except (referencing.exceptions.Unresolvable, ValueError):
            raise FieldValueError("$", f"{name} {schema[name]!r} names nothing inside the schema") from None
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", {})):
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    repeats = [(bool(group), int(count)) for group, count in _REPEAT.findall(pattern)]
    of_one = max((count for group, count in repeats if not group), default=1)
    if of_one * prod(count or 1 for group, count in repeats if group) > MAX_REPEATS:
        raise FieldValueError("$", f"{pattern!r} repeats too much")
    try:
        regex.compile(pattern)
    except regex.error as exc:
        raise FieldValueError("$", f"{pattern!r} is no pattern: {exc}") from None
