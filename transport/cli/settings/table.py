"""The settings: each is a field of a class, and has sources: an option, a variable and the configuration file.

The table is made from the classes: a new field is a new setting.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import attrs

from warren.base.durations import seconds_of
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError, fits
from warren.base.retention import Retention
from warren.base.values import check_of, frozen
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.memory import MemoryConfig
from warren.conversation.options import MODEL_OPTIONS, CompactionConfig, ModelOptions, SessionRequest, TurnOptions
from warren.settings.config import (
    Config,
    Intensity,
    Limits,
    NodeConfig,
    PostgresConfig,
    RetryPolicy,
    StoreConfig,
    TraceConfig,
)
from warren.settings.tool_config import ToolsConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.cli.settings.names import BUDGET, OPTIONS, variable_of
from warren.transport.cli.settings.of_commands import OfCommands, no_nul
from warren.transport.cli.settings.option import kinds_of, may_be_zero, sentence

NUMBERS: Final = frozenset(
    {"factor", "jitter", "max_cost", "principal_share", "sample", "temperature", "tenant_share", "top_p"}
)
"""Fields of type float that are no times."""
YES_OR_NO: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
"""The truth values in a variable, as click has them for the variables of options."""


def duration(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse texts that are no time span above 0; None passes."""
    if value is not None and not seconds_of(value):
        raise FieldValueError(attribute.name, 'must be a duration above 0, such as "30", "1.5s" or "1h30m"')


@frozen
class Setting:
    """A setting.

    Attributes:
        name: its name in the file, with its table before a dot.
        cls: the class that has it.
        field: its field there.
        option: the name of its option in the code; None if no command has one.
    """

    name: str
    cls: type
    field: "attrs.Attribute[Any]"
    option: str | None = None

    @property
    def table(self) -> str:
        """Its table in the file; empty for the settings above all tables."""
        return self.name.rpartition(".")[0]

    @property
    def kind(self) -> Any:
        """The type of its values."""
        return kinds_of(self.field)[0]

    @property
    def is_time(self) -> bool:
        """Whether its values are seconds in the class, and time spans in the file."""
        return self.kind is float and self.field.name not in NUMBERS

    @property
    def for_all(self) -> bool:
        """Whether commands without an option for it follow its variable too."""
        return self.option is None or self.name in OPTIONS

    @property
    def about(self) -> str:
        """The sentence on it in its class."""
        return sentence(self.cls, self.field.name)

    def read(self, value: Any, path: str) -> Any:
        """Return its value for one from a file: times in seconds. Raises InvalidParamsError with the path."""
        kind = self.kind
        if get_origin(kind) is not None and isinstance(value, str) and value.upper() in get_args(kind):
            value = value.upper()  # a choice may be in small letters, as the option has it
        found: Any = codec.from_data(str if self.is_time or kind is Path else kind, value, root=path)
        try:
            if self.is_time:
                found = self._seconds(found)
            elif kind is Path:
                no_nul(None, self.field, found)
            check = check_of(self.field)
            if check is not None and (kind in (int, float) or self.cls in (ModelOptions, OfCommands)):
                check(None, self.field, found)
            if kind in (int, float):
                fits(None, self.field, found)
        except FieldValueError as exc:
            path += exc.field.removeprefix(self.field.name)
            raise InvalidParamsError.at(path, exc.problem) from None
        return found

    def _seconds(self, text: str) -> float:
        if may_be_zero(self.field):
            if (seconds := seconds_of(text)) is None:
                raise FieldValueError(self.field.name, 'must be a duration, such as "0", "1.5s" or "1h30m"')
            return seconds
        duration(None, self.field, text)
        return seconds_of(text) or 0.0

    def read_variable(self, text: str) -> Any:
        """Return its value for the text of its variable. Raises InvalidParamsError that names the variable."""
        path = f"$.{variable_of(self.name)}"
        try:
            return self.read(self._typed(text.strip()), path)
        except InvalidParamsError as exc:
            raise InvalidParamsError.at(path, f"{exc.message.rpartition(': ')[2]}, not {text!r}") from None

    def _typed(self, text: str) -> Any:
        """Return the text of a variable as the file would have it."""
        if self.kind is bool:
            return YES_OR_NO.get(text.lower(), text)
        if get_origin(self.kind) is tuple:
            return text.split()
        if self.kind not in (int, float) or self.is_time:
            return text
        try:
            return self.kind(text)
        except ValueError:
            return text


def _with_option(table: str, cls: type, *fields: str, **renamed: tuple[str, str]) -> Iterator[Setting]:
    """Yield settings that have options: of the names of their fields, or with the names in file and code."""
    named = {name: (name, name) for name in fields} | renamed
    for field, (name, option) in named.items():
        yield Setting(f"{table}.{name}".removeprefix("."), cls, attrs.fields_dict(cls)[field], option)


def _others(table: str, cls: type, *without: str) -> Iterator[Setting]:
    """Yield the other settings of a table."""
    for field in attrs.fields(cls):
        if field.name not in without:
            yield Setting(f"{table}.{field.name}", cls, field)


SERVED: Final = ("token_table", "max_connections", "workers", "console", "metrics_port")
"""Fields of `GatewayConfig` with an option of the same name, besides the address."""
SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each
    for each in (
        *_with_option("", ModelOptions, *MODEL_OPTIONS),
        *_with_option("", OfCommands, "store", "ephemeral"),
        *_with_option("", TurnOptions, "model", "provider"),
        *_with_option("", SessionRequest, system_prompt=("system", "system")),
        *_with_option("", OfCommands, "stream"),
        *_with_option("", Budget, **{field: (name, name) for name, field in BUDGET.items()}),
        *_with_option("", Config, "durability"),
        *_with_option("", OfCommands, "hooks_files"),
        *_with_option("", OfCommands, "memory"),
        *_with_option("", MemoryConfig, "embedder", "embedder_folder"),
        *_with_option("compaction", CompactionConfig, *attrs.fields_dict(CompactionConfig)),
        *_with_option("compaction", OfCommands, enabled=("enabled", "no_compaction")),
        *_with_option("compaction", OfCommands, "compactor"),
        *_with_option("retention", Retention, *attrs.fields_dict(Retention)),
        *_with_option("serve", GatewayConfig, "host", "port"),
        *_with_option("serve", OfCommands, "token_file"),
        *_with_option("serve", GatewayConfig, origins=("origins", "origin")),
        *_with_option("serve", GatewayConfig, *SERVED),
        *_with_option("serve", NodeConfig, name=("node_name", "node_name"), address=("node_address", "node_address")),
        *_others("serve", GatewayConfig, *SERVED, "host", "port", "origins", "token_file", "token", "jwt", "runtime"),
        *_with_option("tools", OfCommands, "root", "builtins", "shell", "skills", "mcp_config"),
        *_with_option("tools", OfCommands, "enable", "disable", "ask", "deny"),
        *_others("tools", ToolsConfig, "root", "shell", "fetch", "skills", "mcp_servers"),
        *_with_option("limits", Limits, "drain", "model_silence"),
        *_others("limits", Limits, "drain", "model_silence", "turn"),
        *_with_option("storage", StoreConfig, "synchronous", "projections"),
        *_with_option("storage", PostgresConfig, "project"),
        *_others("storage", StoreConfig, "synchronous", "projections", "path", "holder"),
        *(Setting(f"limits.turn.{name}", Budget, attrs.fields_dict(Budget)[field]) for name, field in BUDGET.items()),
        *_others("retry", RetryPolicy),
        *_others("intensity", Intensity),
        *_others("jwt", JwtConfig),
        *_others("traces", TraceConfig),
    )
}
"""All settings, by their names in the file."""
TABLES: Final = frozenset(each.table for each in SETTINGS.values()) - {""}
FILE_NAMES: Final[Mapping[str, str]] = {each.option: name for name, each in SETTINGS.items() if each.option is not None}
"""The options that a file may set: the name in the file by the name in the code."""


def default_of(name: str, *, in_database: bool | None = None) -> Any:
    """Return the default of a setting; times in seconds.

    Args:
        name: its name in the file.
        in_database: whether the store is in a database; a setting that holds for the other kind of store alone has no
            default then. None asks for that of the kind that has the setting, of both that of a store in files.
    """
    setting = SETTINGS[name]
    if setting.table == "limits.turn":
        return getattr(Limits().turn, setting.field.name)
    if setting.table == "storage" and in_database is not None:
        of_store = attrs.fields_dict(PostgresConfig if in_database else StoreConfig)
        return of_store[setting.field.name].default if setting.field.name in of_store else None
    return setting.field.default
