"""The configuration file: the settings of the commands that run in a folder."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from warren import codec
from warren.catalog import ModelEntry, Models
from warren.compaction.config import CompactionConfig
from warren.config import Config, Dialect, Intensity, Limits, ModelServer, NodeConfig, RetryPolicy
from warren.database_url import is_place
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError
from warren.options import ModelOptions, SessionRequest, TurnOptions, check_sizes
from warren.retention import Retention
from warren.tenant_limits import TenantLimits
from warren.transport.cli.settings.names import OPTIONS, variable_of
from warren.transport.cli.settings.places import placed
from warren.transport.cli.settings.tables import (
    LEAVES,
    LIMITS_OF_TURNS,
    limits_of,
    no_nul,
    optional,
    read_tables,
    read_variables,
    setting_of,
    settings_of,
    table_of,
)
from warren.transport.cli.settings.tools import ServerTable, ToolsTable
from warren.transport.http.config import GatewayConfig
from warren.values import frozen


@frozen(kw_only=True)
class CompactionTable(CompactionConfig):
    """The table `[compaction]`: the settings of `CompactionConfig` under their names.

    Attributes:
        enabled: false turns the capability off.
        compactor: a strategy of the user's own, as `module:name`.
    """

    enabled: bool = True
    compactor: str | None = None


SERVE_TABLE: Final = attrs.make_class(
    "ServeTable",
    {
        "host": setting_of(GatewayConfig, "host"),
        "port": setting_of(GatewayConfig, "port"),
        "token_file": optional(str, no_nul),
        "origins": setting_of(GatewayConfig, "origins"),
        "token_table": setting_of(GatewayConfig, "token_table"),
        "max_connections": setting_of(GatewayConfig, "max_connections"),
        "workers": setting_of(GatewayConfig, "workers"),
        "console": setting_of(GatewayConfig, "console"),
        "metrics_port": setting_of(GatewayConfig, "metrics_port"),
        "node_name": setting_of(NodeConfig, "name"),
        "node_address": setting_of(NodeConfig, "address"),
    },
    frozen=True,
    kw_only=True,
)
"""The settings of the table `[serve]` that have flags; `token_file` is relative to the command's folder."""
TABLES: Final[Mapping[str, type]] = {
    "compaction": CompactionTable,
    "retention": table_of(Retention),
    "serve": SERVE_TABLE,
    "tools": ToolsTable,
}
SERVERS: Final = "mcp_servers"
MODELS: Final = "models"
PROVIDERS: Final = "providers"
TENANTS: Final = "tenants"


@frozen(kw_only=True)
class ProviderTable:
    """The table `[providers.NAME]`, a server of models: as `warren.config.ModelServer`."""

    base_url: str
    key_env: str | None = None
    dialect: Dialect | None = None
    without: tuple[str, ...] = ()
    think_tags: bool = True


FILE: Final = attrs.make_class(
    "FileSettings",
    {
        "store": optional(str, [no_nul, is_place]),
        "ephemeral": optional(bool),
        "model": setting_of(TurnOptions, "model"),
        "provider": setting_of(TurnOptions, "provider"),
        "system": setting_of(SessionRequest, "system_prompt"),
        "stream": optional(bool),
        **LIMITS_OF_TURNS,
        "memory": optional(bool),
        "embedder": optional(str),
        "embedder_folder": optional(str, [no_nul]),
        **{name: attrs.field(factory=table, type=table) for name, table in TABLES.items()},
        SERVERS: attrs.field(factory=dict, type=Mapping[str, ServerTable]),
        MODELS: attrs.field(factory=dict, type=Mapping[str, ModelEntry]),
        PROVIDERS: attrs.field(factory=dict, type=Mapping[str, ProviderTable]),
        TENANTS: attrs.field(factory=dict, type=Mapping[str, TenantLimits]),
    },
    bases=(ModelOptions,),
    class_body={"__attrs_post_init__": check_sizes},
    frozen=True,
    kw_only=True,
)
"""The settings that have flags, under the names of these; `store` is the address of a PostgreSQL database, or a folder
relative to the command's one."""


def _value(settings: Any, name: str) -> Any:
    """Return a setting by its name, tables with a dot."""
    table, _, inner = name.rpartition(".")
    return getattr(getattr(settings, table) if table else settings, inner)


OBJECTS: Final = frozenset({"hosted_tools"})
"""Settings that are objects of their own, not tables of settings."""
OTHERWISE: Final = {"compaction.enabled": "no_compaction", "serve.origins": "origin"}


def _names() -> dict[str, str]:
    """Return the file's name of each option, tables with a dot, by the option's name in the code."""
    names: dict[str, str] = {}
    for field in attrs.fields(FILE):
        table = TABLES.get(field.name)
        if table is None and field.name not in (SERVERS, MODELS, PROVIDERS, TENANTS):
            names[field.name] = field.name
        for inner in () if table is None else attrs.fields(table):
            name = f"{field.name}.{inner.name}"
            names[OTHERWISE.get(name, inner.name)] = name
    return names | {option: name for name, option in OPTIONS.items()}


FILE_NAMES: Final[Mapping[str, str]] = _names()
"""The options that a file may set: the name in the file by the name in the code."""


NAMED: Final[Mapping[str, type]] = {
    SERVERS: ServerTable,
    MODELS: ModelEntry,
    PROVIDERS: ProviderTable,
    TENANTS: TenantLimits,
}
"""The tables whose inner tables have names of the user's own."""


@frozen
class ConfigFile:
    """The settings of a file, and of the variables of settings that have no flag.

    Attributes:
        defaults: values of options, by their names in the code.
        values: values of settings without a flag, by their names in the file; times in seconds.
        tools: the table of tools; `defaults` has the settings in it that are options.
        servers: the MCP servers, by name.
        models: facts about models, by name.
        model_servers: the servers of models.
        tenants: the limits of tenants, by name.
        there: the names of all settings in the file, tables with a dot.
        variables: the settings among `values` that a variable has set, and its name.
    """

    defaults: Mapping[str, Any]
    values: Mapping[str, Any]
    tools: ToolsTable
    servers: Mapping[str, ServerTable]
    models: Models
    model_servers: tuple[ModelServer, ...]
    tenants: Mapping[str, TenantLimits]
    there: frozenset[str]
    variables: Mapping[str, str]

    @property
    def limits(self) -> Limits:
        """Limits of the runtime."""
        return limits_of(self.values)

    @property
    def retry(self) -> RetryPolicy:
        """The backoff of failed model calls."""
        return RetryPolicy(**self.settings("retry"))

    @property
    def intensity(self) -> Intensity:
        """The restart intensity of the storage actor."""
        return Intensity(**self.settings("intensity"))

    def settings(self, table: str) -> dict[str, Any]:
        """Return the settings in a table, by the names in its class."""
        return settings_of(table, self.values)


def read_config(path: Path | None, environ: Mapping[str, str] | None = None) -> ConfigFile:
    """Return the settings of a file, and of variables, which win over the file; None reads no file.

    Raises:
        InvalidParamsError: with the path `$.config` if the file cannot be read or is no TOML; else with the path of the
            bad setting, as in `$.config.compaction.window`, or of the variable, as in `$.WARREN_LIMITS_MAILBOX`.
    """
    text = "" if path is None else _read(path)
    data = {} if path is None else _parse(path, text)
    there = frozenset(_dotted(data))
    raw = {name: _raw(data, name) for name in OPTIONS if name in there}
    try:
        values = read_tables(data)
        settings: Any = codec.from_data(FILE, data, root="$.config")
        of_models = tuple(_model_server(name, table) for name, table in settings.providers.items())
        _check_tenants(settings.tenants)
    except InvalidParamsError as exc:
        raise placed(exc, f"{path}", text, _known(data)) from None
    found = {
        option: raw[name] if name in raw else _value(settings, name)
        for option, name in FILE_NAMES.items()
        if name in there
    }
    if "no_compaction" in found:
        found["no_compaction"] = not found["no_compaction"]
    outside = read_variables(environ or {})
    variables = {name: variable_of(name) for name in outside}
    tools, servers = settings.tools, settings.mcp_servers
    tables = (tools, servers, settings.models, of_models, settings.tenants)
    return ConfigFile(found, values | outside, *tables, there, variables)


def _check_tenants(tenants: Mapping[str, TenantLimits]) -> None:
    try:
        Config(tenants=tenants)
    except FieldValueError as exc:
        path = f"$.config.{exc.field}"
        raise InvalidParamsError(f"{path}: {exc.problem}", path=path) from None


def _model_server(name: str, table: ProviderTable) -> ModelServer:
    try:
        own = attrs.asdict(table, recurse=False)
        return ModelServer(name=name, **own)
    except FieldValueError as exc:
        path = f"$.config.{PROVIDERS}.{name}.{exc.field}"
        raise InvalidParamsError(f"{path}: {exc.problem}", path=path) from None


def _raw(data: Mapping[str, Any], name: str) -> Any:
    """Return a setting as the file has it."""
    table, _, inner = name.partition(".")
    return data[table][inner]


def _dotted(data: Mapping[str, Any]) -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, dict) and name not in OBJECTS:
            yield from (f"{name}.{inner}" for inner in _dotted(value))
        else:
            yield name


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError(f"$.config: {path}: {problem}", path="$.config") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidParamsError(f"$.config: {path}: {exc}", path="$.config") from None


def _known(data: Mapping[str, Any]) -> set[str]:
    """Return the names of all settings, and of those in the tables that a file has for names of its own."""
    named = {
        f"{table}.{name}.{field.name}"
        for table, cls in NAMED.items()
        for name in (data[table] if isinstance(data.get(table), Mapping) else {})
        for field in attrs.fields(cls)
    }
    return {*FILE_NAMES.values(), *LEAVES, *named}
