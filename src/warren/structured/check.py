"""Checks of data against JSON schemas from outside: nothing is fetched, and the work of a check is bounded."""

# Not jsonschema-rs (0.60): it has no bound of work and holds the GIL during a check. A schema of 40 levels that doubles
# with each, or a long `enum` of objects beside a long list, would stop every thread for years or minutes.

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import inf, prod
from typing import Any, Final

import attrs
import referencing.exceptions
import regex  # type: ignore[import-untyped]
from jsonschema import exceptions, validators  # type: ignore[import-untyped]
from referencing import Registry, Specification
from referencing.jsonschema import DRAFT202012, specification_with

from warren.base.fields import FieldValueError
from warren.base.values import define, frozen

MAX_WORK: Final = 20_000_000
"""Steps of one check: about one for each item, field or choice that a keyword compares."""
MAX_SECONDS: Final = 5.0
PATTERN_SECONDS: Final = 1.0
"""Seconds of all patterns of one check together. Without a bound a pattern could backtrack for ever."""
QUICK_WORK: Final = 1_000
"""Steps of a check on the event loop: a few milliseconds."""
QUICK_PATTERN_SECONDS: Final = 0.001
EMPTY_WORK: Final = 20_000
"""Steps that the check of an empty object may take. A schema can double its work with every level."""
MAX_REPEATS: Final = 10_000
"""Repetitions that a pattern may have. Compiling makes a copy for each one, and nested groups multiply them."""
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
TOO_MUCH: Final = "it takes too much work to check"
SHOWN: Final = 40
"""Parts of a value, or characters of a text, that an error message shows."""
DEEP: Final = frozenset(
    {"enum", "const", "type", "not", "oneOf", "anyOf", "disallow", "extends"}
    | {"dependencies", "dependentRequired", "dependentSchemas"}
)
"""Keywords whose check may walk all of their value. The checks of the others walk the first level alone."""
_REPEAT: Final = re.compile(r"(\)?)\{(\d{1,9})")
Keyword = Callable[[Any, Any, Any, Any], Any]


class TooMuchWorkError(Exception):
    """A check stopped because it used all of its steps or its time."""


@define
class Allowance:
    """The allowance of one check.

    Attributes:
        steps: steps that are left; a step takes at most some microseconds.
        pattern_seconds: seconds that are left for patterns.
        deadline: end of the check by `time.monotonic`.
        factor: steps for each part of a schema that `unevaluatedItems` and `unevaluatedProperties` walk.
        patterns: compiled patterns by their text.
    """

    steps: int
    pattern_seconds: float = PATTERN_SECONDS
    deadline: float = inf
    factor: int = 0
    patterns: dict[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, *, quick: bool) -> "Allowance":
        """Return the allowance of a check on the event loop, or of one in a thread."""
        if quick:
            return cls(QUICK_WORK, QUICK_PATTERN_SECONDS)
        return cls(MAX_WORK, deadline=time.monotonic() + MAX_SECONDS)

    def spend(self, steps: int) -> None:
        """Count steps before they are done. Raises TooMuchWorkError if too few are left."""
        self.steps -= steps
        if self.steps < 0 or time.monotonic() > self.deadline:
            raise TooMuchWorkError

    def found(self, pattern: str, text: str) -> bool:
        """Tell whether a pattern matches anywhere in a text. Raises TooMuchWorkError if it takes too long."""
        self.spend(1 + len(text) // 1000)
        compiled = self.patterns.get(pattern)
        if compiled is None:
            compiled = self.patterns[pattern] = regex.compile(pattern)
        began = time.monotonic()
        try:
            # `concurrent` releases the GIL, so that a slow pattern in a thread delays no other thread
            return compiled.search(str(text), timeout=self.pattern_seconds, concurrent=True) is not None
        except TimeoutError:
            raise TooMuchWorkError from None
        finally:
            self.pattern_seconds = max(1e-6, self.pattern_seconds - (time.monotonic() - began))


class _Current(threading.local):
    """The work of the check in this thread. The library has no way to pass it to the keywords."""

    work: Allowance


_current: Final = _Current()


class _Array(list[Any]):
    """A list that knows its size and has a short `repr`, as the library puts the value's `repr` into each error."""

    __slots__ = ("size",)
    size: int

    def __repr__(self) -> str:
        return super().__repr__() if self.size <= SHOWN else f"a list of {len(self)}"


class _Object(dict[str, Any]):
    """A dict that knows its size and has a short `repr`."""

    __slots__ = ("size",)
    size: int

    def __repr__(self) -> str:
        return super().__repr__() if self.size <= SHOWN else f"an object with {len(self)} properties"


class _Text(str):
    """A long text with a short `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(f"{self[:SHOWN]}…")


def _measured(data: Any, work: Allowance) -> Any:
    """Return a copy of plain data made of the classes above."""
    if isinstance(data, str):
        return _Text(data) if len(data) > 2 * SHOWN else data
    if not isinstance(data, dict | list):
        return data
    work.spend(1 + len(data))
    copy: _Array | _Object
    if isinstance(data, dict):
        copy = _Object((_measured(key, work), _measured(value, work)) for key, value in data.items())
        copy.size = 1 + len(copy) + sum(map(_size, copy.values()))
    else:
        copy = _Array(_measured(value, work) for value in data)
        copy.size = 1 + sum(map(_size, copy))
    return copy


def _size(data: Any) -> int:
    return data.size if isinstance(data, _Array | _Object) else 1 + len(data) // 100 if isinstance(data, str) else 1


def _width(data: Any) -> int:
    return len(data) if isinstance(data, dict | list) else 0


def _counted(name: str, keyword: Keyword) -> Keyword:
    """Return a keyword's check that counts its work before it begins."""
    walked = _size if name in DEEP else _width

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _current.work.spend(1 + _width(instance) + walked(value))
        return keyword(validator, value, instance, schema)

    return check


def _unevaluated(keyword: Keyword) -> Keyword:
    """Return a check of `unevaluatedItems` or `unevaluatedProperties` that counts the library's hidden work.

    For these two the library walks the schema again, references included, and no keyword of it can count the steps. It
    collects items or names in a list and searches the list for each one.
    """

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        work, width = _current.work, _width(instance)
        before = work.factor
        work.factor = max(before, (1 + width) * (1 + width // 64))
        work.spend(work.factor * _size(schema))
        try:
            return list(keyword(validator, value, instance, schema))
        finally:
            work.factor = before

    return check


# These replace checks of the library: its patterns use `re`, which cannot be stopped, and its check of uniqueness
# compares every item with every other one.


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _current.work.found(pattern, instance):
        yield exceptions.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, inner in patterns.items():
            for name in (name for name in instance if _current.work.found(pattern, name)):
                yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        patterns, known = schema.get("patternProperties", {}), schema.get("properties", {})
        for name in (name for name in instance if name not in known):
            if any(_current.work.found(pattern, name) for pattern in patterns):
                continue
            if inner is False:
                yield exceptions.ValidationError(f"there may be no {name!r}")
            else:
                yield from validator.descend(instance[name], inner, path=name)


def _unique_items(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """Compare canonical JSON. A client can easily make tuples with equal hashes, but not texts."""
    if not wanted or not validator.is_type(instance, "array"):
        return
    _current.work.spend(_size(instance))
    seen: set[str] = set()
    for item in instance:
        canonical = json.dumps(_canonical(item), sort_keys=True)
        if canonical in seen:
            yield exceptions.ValidationError(f"{instance!r} has non-unique elements: {item!r} is there twice")
            return
        seen.add(canonical)


def _canonical(data: Any) -> Any:
    """Return data whose JSON is equal for values that a schema regards as equal: 1.0 becomes 1."""
    if isinstance(data, dict):
        return {key: _canonical(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_canonical(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


@frozen
class Checker:
    """Checks data against one schema. Threads may share it.

    Attributes:
        patterns: the compiled patterns of the schema, by their text.
    """

    _validator: Any
    patterns: dict[str, Any]

    def problems(self, data: Any, most: int, work: Allowance) -> list[str]:
        """Return up to `most` problems, each of which begins with the path of the bad value.

        Raises:
            TooMuchWorkError: if the work did not suffice; then the data is neither good nor bad.
        """
        work.patterns = self.patterns
        try:
            errors = islice(_errors(self._validator, _measured(data, work), work), most)
            return [f"{error.json_path}: {error.message}" for error in errors]
        except RecursionError:
            raise TooMuchWorkError from None
        except TooMuchWorkError:
            raise
        except Exception as exc:  # noqa: BLE001 - the library raises anything on odd numbers and schemas
            return [f"it cannot be checked: {type(exc).__name__}: {exc}"]


def _errors(validator: Any, data: Any, work: Allowance) -> Iterator[Any]:
    """Return the errors of data. The work counts the checks of this thread until the next call."""
    _current.work = work
    return validator.iter_errors(data)  # type: ignore[no-any-return]


def checker_of(schema: Mapping[str, Any], work: Allowance) -> Checker:
    """Return the checker of a schema.

    Raises:
        FieldValueError: if it is not a schema that can be used; the field is the path of the bad keyword.
        TooMuchWorkError: if the work did not suffice to check the schema.
    """
    try:
        return _checker_of(_measured(schema, work), work)
    except (FieldValueError, TooMuchWorkError):
        raise
    except RecursionError:
        raise TooMuchWorkError from None
    except Exception as exc:
        raise FieldValueError("$", f"is no JSON schema: {type(exc).__name__}: {exc}") from exc


def _checker_of(schema: _Object, work: Allowance) -> Checker:
    own: Any = validators.validator_for(
        schema, default=None if "$schema" in schema else validators.Draft202012Validator
    )
    if own is None:
        raise FieldValueError("$.$schema", "is not a known draft")
    guarded = _guarded(own)
    error = next(_errors(guarded(own.META_SCHEMA), schema, work), None)
    if error is not None:
        raise FieldValueError(error.json_path, error.message)
    dialect = specification_with(str(schema.pop("$schema", "")), default=DRAFT202012)
    root = dialect.create_resource(schema)
    registry: Any = Registry().with_resource(root.id() or "", root).crawl()  # crawled once, not with each reference
    patterns = _look_through(root, dialect, registry, work)
    checker = Checker(guarded(schema, registry=registry), patterns)
    _check_empty(checker, work)
    return checker


def _check_empty(checker: Checker, work: Allowance) -> None:
    """Refuse a schema whose check of an empty object takes too much work."""
    empty = attrs.evolve(work, steps=min(EMPTY_WORK, work.steps))
    try:
        checker.problems({}, 1, empty)
    except TooMuchWorkError:
        if work.steps > EMPTY_WORK:
            raise FieldValueError("$", TOO_MUCH) from None
        raise


@lru_cache
def _guarded(own: Any) -> Any:
    """Return the validator class of a draft, with keywords that count their work."""
    keywords = dict(own.VALIDATORS) | {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    if "uniqueItems" in keywords:
        keywords["uniqueItems"] = _unique_items
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in keywords:
            keywords[name] = _unevaluated(keywords[name])
    guarded = validators.extend(own, {name: _counted(name, keyword) for name, keyword in keywords.items()})
    kept = [(field.name, field.alias) for field in attrs.fields(guarded) if field.init]

    def evolve(self: Any, **changes: Any) -> Any:
        """Return a validator of another schema. It has this class, also if the schema names its own draft."""
        work = _current.work
        work.spend(1 + work.factor * _size(changes.get("schema")))
        return guarded(**({alias: getattr(self, name) for name, alias in kept if alias not in changes} | changes))

    guarded.evolve = evolve
    return guarded


def _look_through(root: Any, dialect: "Specification[Any]", registry: Any, work: Allowance) -> dict[str, Any]:
    """Refuse faults that the meta-schema does not find: outside references, bad patterns, other drafts inside.

    Return the compiled patterns by their text.
    """
    patterns: dict[str, Any] = {}
    waiting = [(root, registry.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        work.spend(1 + _width(resource.contents))
        if isinstance(resource.contents, dict):
            _check_one(resource.contents, resolver, patterns)
        inner = (dialect.create_resource(each.contents) for each in resource.subresources())
        waiting += [(each, resolver.in_subresource(each)) for each in inner]
    return patterns


def _check_one(schema: dict[str, Any], resolver: Any, patterns: dict[str, Any]) -> None:
    if "$schema" in schema:
        raise FieldValueError("$", "$schema may only stand at the top")
    if "patternProperties" in schema and "unevaluatedProperties" in schema:
        raise FieldValueError("$", "patternProperties and unevaluatedProperties cannot be used together here")
    for name in REFERENCES:
        try:
            if name in schema:
                resolver.lookup(schema[name])
        except (referencing.exceptions.Unresolvable, ValueError):
            raise FieldValueError("$", f"{name} {schema[name]!r} names nothing inside the schema") from None
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", {})):
        patterns[pattern] = _compiled(pattern)


def _compiled(pattern: str) -> Any:
    repeats = [(bool(group), int(count)) for group, count in _REPEAT.findall(pattern)]
    of_one = max((count for group, count in repeats if not group), default=1)
    if of_one * prod(count or 1 for group, count in repeats if group) > MAX_REPEATS:
        raise FieldValueError("$", f"{pattern!r} repeats too much")
    try:
        return regex.compile(pattern)
    except regex.error as exc:
        raise FieldValueError("$", f"{pattern!r} is no pattern: {exc}") from None
