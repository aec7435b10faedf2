"""The configuration file, and the variables of settings that commands follow without an option."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

import attrs

from warren.agents.agent import Agent
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.tenant_limits import TenantLimits
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.options import MODEL_OPTIONS, ModelOptions, check_sizes
from warren.models.catalog import ModelEntry, Models
from warren.settings.config import AgentFolder, Config, Dialect, ModelServer
from warren.settings.hook_config import HookEntry
from warren.transport.cli.settings.agents import AgentTable, agent_in, folders_in
from warren.transport.cli.settings.hooks import HookTable, entries_in
from warren.transport.cli.settings.names import variable_of, variables_in
from warren.transport.cli.settings.table import SETTINGS, TABLES
from warren.transport.cli.settings.tools import ServerTable

ROOT: Final = "$.config."
UNKNOWN: Final = "is not a known field"


@frozen(kw_only=True)
class ProviderTable:
    """The table `[providers.NAME]`, a server of models: as `warren.settings.config.ModelServer`."""

    base_url: str
    key_env: str | None = None
    dialect: Dialect | None = None
    without: tuple[str, ...] = ()
    think_tags: bool = True


SERVERS: Final = "mcp_servers"
MODELS: Final = "models"
PROVIDERS: Final = "providers"
TENANTS: Final = "tenants"
AGENTS: Final = "agents"
NAMED: Final[Mapping[str, Any]] = {
    SERVERS: Mapping[str, ServerTable],
    MODELS: Mapping[str, ModelEntry],
    PROVIDERS: Mapping[str, ProviderTable],
    TENANTS: Mapping[str, TenantLimits],
    AGENTS: Mapping[str, AgentTable],
}
"""The tables whose inner tables have names of the user's own."""
HOOKS: Final = "hooks"
FOLDERS: Final = "agent_folders"
OTHERS: Final = frozenset({*NAMED, HOOKS, FOLDERS})


@frozen
class ConfigFile:
    """The settings of a file, and of variables, which win over it.

    Attributes:
        defaults: the values of options as the file spells them, by their names in the code.
        values: the values of settings by their names in the file; times in seconds.
        servers: the MCP servers, by name.
        models: facts about models, by name.
        model_servers: the servers of models.
        tenants: the limits of tenants, by name.
        hooks: the hooks.
        agents: the agents.
        agent_tenants: the tenants that know an agent, by its name, unless all do.
        agent_folders: folders with more agents.
        variables: the settings among `values` that a variable has set, and its name.
    """

    defaults: Mapping[str, Any]
    values: Mapping[str, Any]
    servers: Mapping[str, ServerTable]
    models: Models
    model_servers: tuple[ModelServer, ...]
    tenants: Mapping[str, TenantLimits]
    hooks: tuple[HookEntry, ...]
    agents: tuple[Agent[Any], ...]
    agent_tenants: Mapping[str, tuple[str, ...]]
    agent_folders: tuple[AgentFolder, ...]
    variables: Mapping[str, str]

    def settings(self, table: str) -> dict[str, Any]:
        """Return the settings of a table that commands follow without an option, by the names in its class."""
        found = ((SETTINGS[name], value) for name, value in self.values.items())
        return {each.field.name: value for each, value in found if each.table == table and each.for_all}


def read_config(path: Path | None, environ: Mapping[str, str] | None = None) -> ConfigFile:
    """Return the settings of a file, and of variables, which win over the file; None reads no file.

    Raises:
        InvalidParamsError: with the path `$.config` if the file cannot be read or is no TOML; else with the path of the
            bad setting, as in `$.config.compaction.window`, or of the variable, as in `$.WARREN_LIMITS_MAILBOX`.
    """
    text, data = ("", {}) if path is None else _read(path)
    try:
        found = dict(_settings({name: value for name, value in data.items() if name not in OTHERS}))
        values = {name: SETTINGS[name].read(value, f"$.config.{name}") for name, value in found.items()}
        named: dict[str, Any] = {
            table: codec.from_data(kind, data.get(table, {}), root=f"$.config.{table}") for table, kind in NAMED.items()
        }
        hooks = entries_in(codec.from_data(tuple[HookTable, ...], data.get(HOOKS, []), root=f"$.config.{HOOKS}"))
        of_models = tuple(_model_server(name, table) for name, table in named[PROVIDERS].items())
        check_sizes(ModelOptions(**{name: values[name] for name in MODEL_OPTIONS if name in values}))
        agents = tuple(agent_in(name, table, path) for name, table in named[AGENTS].items())
        agent_tenants = {name: table.tenants for name, table in named[AGENTS].items() if table.tenants}
        folders = folders_in(data.get(FOLDERS, []), path)
        Config(tenants=named[TENANTS], agents=agents, agent_tenants=agent_tenants)
    except FieldValueError as exc:
        raise placed(exc.refusal("$.config"), f"{path}", text, _known(data)) from None
    except InvalidParamsError as exc:
        raise placed(exc, f"{path}", text, _known(data)) from None
    options = {option: value for name, value in found.items() if (option := SETTINGS[name].option) is not None}
    if "no_compaction" in options:
        options["no_compaction"] = not options["no_compaction"]
    outside = dict(_variables(environ or {}))
    variables = {name: variable_of(name) for name in outside}
    return ConfigFile(
        defaults=options,
        values=values | outside,
        servers=named[SERVERS],
        models=named[MODELS],
        model_servers=of_models,
        tenants=named[TENANTS],
        agents=agents,
        agent_tenants=agent_tenants,
        agent_folders=folders,
        hooks=hooks,
        variables=variables,
    )


def _settings(data: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table and of those in it. Raises InvalidParamsError for an unknown one."""
    for key, value in data.items():
        name = f"{table}.{key}".removeprefix(".")
        path = f"$.config.{name}"
        if name in TABLES:
            if not isinstance(value, dict):
                raise InvalidParamsError.at(path, "must be an object")
            yield from _settings(value, name)
        elif name in SETTINGS:
            yield name, value
        else:
            raise InvalidParamsError.at(path, UNKNOWN)


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings in the environment, by their names in the file. Raises InvalidParamsError for a bad one."""
    known = {variable_of(name): each for name, each in SETTINGS.items() if each.for_all or each.table == "retention"}
    for variable in variables_in(environ):
        if variable not in known:
            meant = suggestion(variable, known)
            raise InvalidParamsError.at(f"$.{variable}", f"there is no such setting{meant}")
        if known[variable].for_all and environ[variable].strip():
            yield known[variable].name, known[variable].read_variable(environ[variable])


def _model_server(name: str, table: ProviderTable) -> ModelServer:
    try:
        own = attrs.asdict(table, recurse=False)
        return ModelServer(name=name, **own)
    except FieldValueError as exc:
        raise exc.refusal(f"$.config.{PROVIDERS}.{name}") from None


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and its data. Raises InvalidParamsError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError.at("$.config", f"{path}: {problem}") from None


def _known(data: Mapping[str, Any]) -> set[str]:
    """Return the names of all settings, and of those in the tables that a file has for names of its own."""
    named = {
        f"{table}.{name}.{field.name}"
        for table, kind in NAMED.items()
        for name in (data[table] if isinstance(data.get(table), Mapping) else {})
        for field in attrs.fields(get_args(kind)[1])
    }
    hooks = {f"{HOOKS}.{field.name}" for field in (attrs.fields(HookTable) if HOOKS in data else ())}
    return {*SETTINGS, *named, *hooks}


def placed(error: InvalidParamsError, file: str, text: str, known: Collection[str]) -> InvalidParamsError:
    """Return the error of a setting with its file and line, and for an unknown one the name of a known one.

    Args:
        error: the error, whose path begins with `$.config.`.
        file: the name of the file.
        text: its content, which is TOML.
        known: the names of all settings, tables with a dot.
    """
    path = str(error.details.get("path", ""))
    keys = tuple(_keys(tomllib.loads(text), path.removeprefix(ROOT)))
    line = _line_of(text, keys) if keys else None
    place = file if line is None else f"{file}:{line}"
    meant = suggestion(".".join(keys), known) if error.message.endswith(UNKNOWN) else ""
    return InvalidParamsError(f"{error.message}{meant} ({place})", path=path)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence on an unknown name: the same name in another table, or the nearest one; "" if none.

    The names of tables count, too.
    """
    tables = {each.rpartition(".")[0] for each in known} - {""}
    leaf = name.rpartition(".")[2]
    elsewhere = [each for each in sorted(known) if each.rpartition(".")[2] == leaf]
    found = elsewhere or get_close_matches(name, sorted({*known, *tables}), n=1)
    return f"; did you mean {' or '.join(f'`{each}`' for each in found)}?" if found else ""


def _keys(data: Any, path: str) -> Iterator[str]:
    """Yield the keys of a path in the data of a file: keys may have dots themselves, and lists have no keys."""
    fitting = (
        [key for key in data if path == key or path.startswith((f"{key}.", f"{key}["))]
        if isinstance(data, Mapping)
        else []
    )
    if fitting:
        key = max(fitting, key=len)
        yield key
        yield from _keys(data[key], path[len(key) :].removeprefix("."))


def _line_of(text: str, keys: Collection[str]) -> int | None:
    """Return the number of the line where a setting begins: the parser tells no places, so it reads ever more lines."""
    lines, begun = text.split("\n"), 0
    for number in range(1, len(lines) + 1):
        try:
            data: Any = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:  # within a value of several lines
            continue
        for key in keys:
            data = data.get(key) if isinstance(data, Mapping) else None
        if data is not None:
            return begun + 1
        begun = number
    return None
