"""Tables of the configuration file whose settings are the fields of a class: `Limits`, `StoreConfig` and others.

Each of these settings has a variable, too. The tables are made from the classes: a new field is a new setting.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, get_args

import attrs

from warren import codec
from warren.budget import Budget
from warren.config import Intensity, Limits, PostgresConfig, RetryPolicy, StoreConfig, TraceConfig
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError, fits
from warren.retention import Retention
from warren.tool_config import ToolsConfig
from warren.transport.cli.settings.names import BUDGET, variable_of, variables_in
from warren.transport.cli.settings.option import may_be_zero, sentence
from warren.transport.cli.settings.places import suggestion
from warren.transport.cli.settings.values import seconds_of
from warren.transport.http.config import GatewayConfig
from warren.transport.http.jwt_config import JwtConfig

YES_OR_NO: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
"""The truth values in a variable, as click has them for the variables of options."""
NUMBERS: Final = frozenset({"factor", "jitter", "max_cost", "principal_share", "sample", "tenant_share"})
"""Fields of type float that are no times."""


def duration(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse texts that are no time span above 0; None passes."""
    if value is not None and not seconds_of(value):
        raise FieldValueError(attribute.name, 'must be a duration above 0, such as "30", "1.5s" or "1h30m"')


def delay(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse texts that are no time span; None passes."""
    if value is not None and seconds_of(value) is None:
        raise FieldValueError(attribute.name, 'must be a duration, such as "0", "1.5s" or "1h30m"')


def no_nul(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse a text that cannot be a path; None passes."""
    if value is not None and "\0" in value:
        raise FieldValueError(attribute.name, "must not hold NUL")


def setting_of(cls: type, name: str) -> Any:
    """Return the field of a table for a field of a class; times are durations, and None is not set."""
    field = attrs.fields_dict(cls)[name]
    kind: Any = field.type
    if kind in (float, float | None) and field.name not in NUMBERS:
        return optional(str, delay if may_be_zero(field) else duration)
    checks = [*([field.validator] if field.validator else []), *([fits] if kind not in (bool, str) else [])]
    numeric = kind in (int, int | None, float, float | None)
    return optional(kind, attrs.validators.optional(checks) if numeric else None)


def optional(kind: Any, validator: Any = None) -> Any:
    """Return the field of a table for a setting that no class has."""
    return attrs.field(default=None, type=kind | None, validator=validator)


def table_of(cls: type, without: Collection[str] = (), **more: Any) -> type:
    """Return a table with the fields of a class under their names, and some more."""
    made = {field.name: setting_of(cls, field.name) for field in attrs.fields(cls) if field.name not in without}
    return attrs.make_class(f"{cls.__name__}Table", made | more, frozen=True, kw_only=True)


LIMITS_OF_TURNS: Final[Mapping[str, Any]] = {name: setting_of(Budget, field) for name, field in BUDGET.items()}
TURN_TABLE: Final = attrs.make_class("TurnTable", dict(LIMITS_OF_TURNS), frozen=True, kw_only=True)
OF_SERVE: Final = (
    *("host", "port", "token_file", "token_table", "origins", "max_connections", "workers", "console"),
    "metrics_port",
    *("token", "jwt", "runtime"),
)
"""Fields of `GatewayConfig` that have flags, and those that are no settings of `[serve]`."""
CLASSES: Final[Mapping[str, type]] = {
    "storage": StoreConfig,
    "limits": Limits,
    "limits.turn": Budget,
    "retry": RetryPolicy,
    "intensity": Intensity,
    "serve": GatewayConfig,
    "jwt": JwtConfig,
    "tools": ToolsConfig,
    "traces": TraceConfig,
}
"""The class that each table is about."""
TABLES: Final[Mapping[str, type]] = {
    "storage": table_of(StoreConfig, ("path", "holder"), project=optional(str, no_nul)),
    "limits": table_of(Limits, ("turn",), turn=optional(TURN_TABLE)),
    "retry": table_of(RetryPolicy),
    "intensity": table_of(Intensity),
    "serve": table_of(GatewayConfig, OF_SERVE),
    "jwt": table_of(JwtConfig),
    "traces": table_of(TraceConfig),
    "tools": table_of(ToolsConfig, ("root", "shell", "fetch", "skills", "mcp_servers")),
}
MIXED: Final = frozenset({"serve", "tools"})
"""Tables with settings that are options as well; the other settings of these tables are here."""


def _leaves() -> Iterator[tuple[str, type, str]]:
    """Yield every setting of these tables: its name in the file, its table, its name there."""
    for name, table in TABLES.items():
        for field in attrs.fields(table):
            if (name, field.name) == ("limits", "turn"):
                yield from ((f"limits.turn.{inner}", TURN_TABLE, inner) for inner in BUDGET)
            else:
                yield f"{name}.{field.name}", table, field.name


LEAVES: Final = {name: (table, field) for name, table, field in _leaves()}


def _class_of(table: str, field: str) -> type:
    """Return the class that has a setting; a few settings of `[storage]` are of a store in a database alone."""
    cls = CLASSES[table]
    return PostgresConfig if cls is StoreConfig and field not in attrs.fields_dict(cls) else cls


def default_of(name: str, *, in_database: bool | None = None) -> Any:
    """Return the default of a setting; times in seconds.

    Args:
        name: its name in the file.
        in_database: whether the store is in a database; a setting that holds for the other kind of store alone has no
            default then. None asks for that of the kind that has the setting, of both that of a store in files.
    """
    table, _, field = name.rpartition(".")
    if table == "limits.turn":
        return getattr(Limits().turn, BUDGET[field])
    if table == "storage" and in_database is not None:
        of_store = attrs.fields_dict(PostgresConfig if in_database else StoreConfig)
        return of_store[field].default if field in of_store else None
    return getattr(attrs.fields(_class_of(table, field)), field).default


def about(name: str) -> str:
    """Return the sentence about a setting in its class."""
    table, _, field = name.rpartition(".")
    return sentence(_class_of(table, field), BUDGET.get(field, field))


def read_tables(data: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of these tables out of a file's data; return them by whole names, times in seconds.

    Raises InvalidParamsError.
    """
    found: dict[str, Any] = {}
    for name, table in TABLES.items():
        inside = data.pop(name, {})
        if name in MIXED and isinstance(inside, dict):
            rest = {key: value for key, value in inside.items() if f"{name}.{key}" not in LEAVES}
            data[name], inside = rest, {key: value for key, value in inside.items() if key not in rest}
        elif name in MIXED:
            data[name], inside = inside, {}
        if isinstance(inside, dict):
            inside = {key: _chosen(LEAVES.get(f"{name}.{key}"), value) for key, value in inside.items()}
        found |= _given(codec.from_data(table, inside, root=f"$.config.{name}"), name)
    return found


def read_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the environment, by their names in the file; times in seconds.

    Raises InvalidParamsError that names the variable.
    """
    known = {variable_of(name): name for name in LEAVES}
    of_retention = {variable_of(f"retention.{field.name}") for field in attrs.fields(Retention)}  # those of options
    there = variables_in(environ)
    for variable in there:
        if variable not in known and variable not in of_retention:
            meant = suggestion(variable, known.keys() | of_retention)
            raise InvalidParamsError(f"$.{variable}: there is no such setting{meant}", path=f"$.{variable}")
    found = {known[variable]: environ[variable] for variable in there if variable in known}
    return {name: _of_variable(name, text) for name, text in found.items() if text.strip()}


def _of_variable(name: str, text: str) -> Any:
    table, field = LEAVES[name]
    path = f"$.{variable_of(name)}"
    try:
        made: Any = codec.from_data(
            table,
            {field: _chosen(LEAVES[name], _typed(getattr(attrs.fields(table), field).type, text.strip()))},
            root="$",
        )
    except InvalidParamsError as exc:
        problem = exc.message.rpartition(": ")[2]
        raise InvalidParamsError(f"{path}: {problem}, not {text!r}", path=path) from None
    ((_, value),) = _given(made, "")
    return value


def _typed(kind: Any, text: str) -> Any:
    """Return the text of a variable as the file would have it."""
    if kind == (bool | None):
        return YES_OR_NO.get(text.lower(), text)
    if kind == (tuple[str, ...] | None):
        return text.split()
    for number in (int, float):
        if kind == (number | None):
            try:
                return number(text)
            except ValueError:
                return text
    return text


def _chosen(leaf: tuple[type, str] | None, value: Any) -> Any:
    """Return a value as the class of its table spells it: a choice may be in small letters, as the flag has it."""
    if leaf is None or not isinstance(value, str):
        return value
    choices = [choice for part in get_args(getattr(attrs.fields(leaf[0]), leaf[1]).type) for choice in get_args(part)]
    return value.upper() if value.upper() in choices else value


def _given(table: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table and of the tables in it, by whole names; times in seconds."""
    for field in attrs.fields(type(table)):
        value, whole = getattr(table, field.name), f"{name}.{field.name}"
        if attrs.has(type(value)):
            yield from _given(value, whole)
        elif value is not None:
            is_time = isinstance(value, str) and field.validator in (duration, delay)
            yield whole, seconds_of(value) if is_time else value


def settings_of(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one table among those that were given, by their names in its class."""
    names = BUDGET if table == "limits.turn" else {}
    inside = {name.rpartition(".")[2]: value for name, value in values.items() if name.rpartition(".")[0] == table}
    return {names.get(name, name): value for name, value in inside.items()}


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Return the limits of the runtime; limits that are not set are at their defaults."""
    turn = Limits().turn.overridden(Budget(**settings_of("limits.turn", values)))
    return Limits(**settings_of("limits", values), turn=turn)
