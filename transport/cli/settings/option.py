"""Options of commands: each has a variable in the environment, and most are made from the fields of classes."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import attrs
import click

from warren.base.described import attributes_of
from warren.base.fields import LARGEST, Between, FieldValueError, checks_of
from warren.base.values import check_of
from warren.transport.cli.settings.service_links import is_service_link
from warren.transport.cli.settings.values import delay_of, duration_of, schema_of, text_of

F = TypeVar("F", bound=Callable[..., Any])
NAMED: Final = re.compile(r"`([a-z_]+)`")
UNSET: Final = re.compile(r"(\. )?\b(?:None|[Nn]ull)\b")


class SettingOption(click.Option):
    """An option that the environment can set too, unless the variable is about a service of a container."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's value; None for one that a container platform has set for a service."""
        value = super().resolve_envvar_value(ctx)
        return None if value is None or is_service_link(str(self.envvar), value) else value


def group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several, which act as if they stood below each other."""

    def decorate(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option that the environment can set too, as WARREN_<NAME>."""
    name = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "WARREN_" + name.removeprefix("--").replace("-", "_").upper()
    in_environment: dict[str, Any] = {"cls": SettingOption, "envvar": variable, "show_envvar": True}
    return click.option(*names, **in_environment | settings)


def of_field(
    cls: type, name: str, *names: str, note: str = "", variable: bool = True, **settings: Any
) -> Callable[[F], F]:
    """Return the option of a field: the class says its type, its bounds, its default and the sentence of its help.

    Args:
        cls: the attrs class.
        name: the field.
        names: names of the option, as click takes them; the field's own without them.
        note: a sentence that the help has besides.
        variable: whether the environment can set the option.
        settings: settings of click in place of those that the field gives.
    """
    field = attrs.fields_dict(cls)[name]
    made = {
        "help": f"{_with_flags(cls, sentence(cls, name))} {note}".strip(),
        "show_default": _default(field),
        **_kind(field),
    }
    make = option if variable else click.option
    return make(*(names or (f"--{name.replace('_', '-')}",)), **made | settings)


def sentence(cls: type, name: str) -> str:
    """Return the sentence on a field in its class, without terms of the class; "" if there is none."""
    about = attributes_of(cls).get(name, "").removeprefix("whether to ")
    text = UNSET.sub(lambda found: f"{found[1]}Unset" if found[1] else "unset", about)
    return text[:1].upper() + text[1:]


def _with_flags(cls: type, text: str) -> str:
    """Return the sentence on a field with its names of other fields as the options that these have."""
    fields = attrs.fields_dict(cls)
    return NAMED.sub(lambda found: f"--{found[1].replace('_', '-')}" if found[1] in fields else found[0], text)


def is_flat(field: "attrs.Attribute[Any]") -> bool:
    """Tell whether one option can set a field: a field with an object of a class has an option for each part."""
    return not any(attrs.has(kind) for kind in kinds_of(field))


def kinds_of(field: "attrs.Attribute[Any]") -> tuple[Any, ...]:
    """Return the types of a field's values, besides None."""
    hint: Any = field.type
    alone = isinstance(hint, type) or get_origin(hint) in (Literal, Mapping, tuple)
    return (hint,) if alone else tuple(kind for kind in get_args(hint) if kind is not type(None))


def _kind(field: "attrs.Attribute[Any]") -> dict[str, Any]:
    """Return click's type of a field's values, and its word for one."""
    (kind,) = kinds_of(field)
    if kind in (int, float):
        number, word = _number(field, kind)
        return {"type": number, "metavar": word}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind), case_sensitive=False)}
    if get_origin(kind) is Mapping:
        return {"type": schema_of, "metavar": "FILE|JSON"}
    if get_origin(kind) is tuple:
        return {"type": text_of, "metavar": "NAME", "multiple": True}
    return {"type": text_of, "metavar": "NAME"} if kind is str else {}


class _Whole(click.IntRange):
    """Numbers of 64 bits from a least one on; the help tells that one alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{value} is more than {LARGEST}.", param, ctx)
        return number


def _number(field: "attrs.Attribute[Any]", kind: type) -> tuple[Any, str]:
    """Return click's type of numbers within a field's bounds; a number with a fraction and no range is a time."""
    between = _range(field)
    least = 0 if may_be_zero(field) else 1
    if kind is int:
        return (_Whole(least) if between is None else click.IntRange(between.low, between.high)), "N"
    if between is not None:
        return click.FloatRange(between.low, between.high, min_open=between.without_low), "N"
    return (duration_of if least else delay_of), "TIME"


def _range(field: "attrs.Attribute[Any]") -> Between | None:
    return next((check for check in checks_of(field) if isinstance(check, Between)), None)


def may_be_zero(field: "attrs.Attribute[Any]") -> bool:
    """Tell whether 0 is a good value of a field with a number."""
    try:
        if (check := check_of(field)) is not None:
            check(None, field, 0)
    except FieldValueError:
        return False
    return True


def _default(field: "attrs.Attribute[Any]") -> str | None:
    """Return the default as help shows it; None if there is none. An option itself has none: a file may set it."""
    match field.default:
        case bool():
            return "on" if field.default else None
        case float():
            return f"{field.default:g}" + ("s" if _range(field) is None else "")
        case int() | str():
            return str(field.default)
        case _:
            return None
