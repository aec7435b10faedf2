"""Options that several commands share, in groups, and the options of one command as one object."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click
from click.core import ParameterSource

from warren.base.database_url import DatabaseUrl
from warren.base.described import attributes_of
from warren.base.errors import CompactionDisabledError, InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.principals import LOCAL, Principal
from warren.base.values import define, frozen
from warren.conversation.attachments import File
from warren.conversation.budget import Budget
from warren.conversation.memory import MemoryConfig
from warren.conversation.options import MODEL_OPTIONS, NO_OPTIONS, CompactionConfig, SessionRequest, TurnOptions
from warren.settings.config import (
    Config,
    Intensity,
    Limits,
    ModelServer,
    PostgresConfig,
    RetryPolicy,
    StoreConfig,
    TraceConfig,
)
from warren.transport.cli.settings.aliases import ALIASES, alias_options, resolved
from warren.transport.cli.settings.kinds import KINDS, approve_option, kind_options, kinds_given
from warren.transport.cli.settings.names import BUDGET, variables_in
from warren.transport.cli.settings.of_commands import OfCommands
from warren.transport.cli.settings.option import group, is_flat, of_field, option
from warren.transport.cli.settings.tool_options import TOOLS, tool_options, tools_given
from warren.transport.cli.settings.values import (
    embedder_of,
    file_of,
    label_of,
    place_of,
    tenant_of,
    text_of,
)
from warren.transport.cli.terminal import json_lines
from warren.transport.embedders import BM25, KNOWN

if TYPE_CHECKING:
    from warren.compaction.policy import Compactor, NewCompactor
    from warren.transport.cli.named_server import Server
    from warren.transport.cli.settings.file import ConfigFile
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
DEFAULT_STORE: Final = Path(".rkat")
DEFAULT_CONFIG: Final = DEFAULT_STORE / "config.toml"
CONFIG_FILE: Final = "warren.config_file"
"""Key of the configuration file in the context of a command."""
COMPACTION_FLAGS: Final = {
    "--compact-threshold": "auto_compact_threshold",
    "--compact-keep": "recent_turn_budget",
    "--compact-summary-tokens": "max_summary_tokens",
    "--compact-every": "min_turns_between_compactions",
    "--context-window": "window",
}
COMPACTION_FIELDS: Final = tuple(COMPACTION_FLAGS.values())
ANSWER_OPTIONS: Final = tuple(
    field.name
    for field in attrs.fields(TurnOptions)
    if is_flat(field) and field.name not in ("model", "provider", "keep_alive", "durability", *MODEL_OPTIONS)
)
"""Options of a turn that a runtime does not have."""
STORAGE_OPTIONS: Final = ("synchronous", "projections", "project")
LIMIT_OPTIONS: Final = ("model_silence", "drain")
PLACES: Final = ("store", "ephemeral")
RUNTIME_OPTIONS: Final = (
    *COMPACTION_FIELDS,
    *("compactor", "no_compaction", "memory", "embedder", "embedder_folder"),
    *TOOLS,
    *STORAGE_OPTIONS,
    "hooks_files",
    "model_silence",
    "base_url",
    "record",
)
"""Options of the process that runs the sessions, besides the place of its store."""
WEAKEST_FIRST: Final = (
    ParameterSource.DEFAULT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.ENVIRONMENT,
    ParameterSource.COMMANDLINE,
)
FROM_FILE: Final = WEAKEST_FIRST.index(ParameterSource.DEFAULT_MAP)


@define
class Mode:
    """The form of results and errors.

    Attributes:
        json: results and errors are JSON.
        verbose: events, log and tracebacks go to stderr.
    """

    json: bool = False
    verbose: bool = False

    @classmethod
    def guess(cls, argv: list[str], environ: Mapping[str, str]) -> "Mode":
        """Return the mode that arguments ask for. It serves to show errors in these arguments."""
        chosen = [environ.get("WARREN_OUTPUT", "")]
        chosen += [after for before, after in pairwise(argv) if before == "--output"]
        chosen += [arg.removeprefix("--output=") for arg in argv if arg.startswith("--output=")]
        return cls(json=chosen[-1] == "json")


@frozen(kw_only=True)
class Options:
    """The work of a command and its settings; a setting without an option of the command has its default.

    Attributes:
        mode: the form of results and errors.
        command: the command, which other processes on the same store see.
        store: the store's folder, or the address of its database; None keeps nothing.
        store_named: whether the user named the store.
        server: the gateway that has the sessions; None if this process runs them.
        tenant: the tenant of the sessions; None for that of the local user, or of the token at a server.
        config: the settings of the runtime; its store and its memory get their places when they are opened.
        turn: the options of the turn or the session that the command begins.
        memory: the settings of the memory, wanted or not.
        storage: settings of the store, by their names in `StoreConfig` and `PostgresConfig`.
        gateway: settings of the gateway that are no options, by their names in `GatewayConfig`; `jwt` is a mapping.
        stream: whether the answer is written as it comes; None streams if stdout is a terminal.
        agent: the agent that a session is made of; None for none. Settings of the model in the file are not its own.
        label: labels of a session.
        title: title of a session.
        key: the idempotency key of a session.
        not_before: time before which no turn takes the prompt; None for none.
        attach: files that the prompt is about.
        approve_all: whether every call that waits for approval is allowed.
    """

    mode: Mode = attrs.field(factory=Mode)
    command: str = "warren"
    store: Path | DatabaseUrl | None = DEFAULT_STORE
    store_named: bool = False
    server: "Server | None" = None
    tenant: str | None = None
    config: Config = attrs.field(factory=Config)
    turn: TurnOptions = NO_OPTIONS
    memory: MemoryConfig = attrs.field(factory=MemoryConfig)
    storage: Mapping[str, Any] = attrs.field(factory=dict)
    gateway: Mapping[str, Any] = attrs.field(factory=dict)
    stream: bool | None = None
    agent: str | None = None
    label: tuple[tuple[str, str], ...] = ()
    title: str | None = None
    key: str | None = None
    not_before: datetime | None = None
    attach: tuple[File, ...] = ()
    approve_all: bool = False

    @property
    def user(self) -> Principal:
        """The local user, in the tenant of the options."""
        return LOCAL if self.tenant is None else attrs.evolve(LOCAL, tenant=self.tenant)


def gather(given: Mapping[str, Any]) -> Options:
    """Return the running command's options as one object.

    Raises:
        click.UsageError: if --server, --store and --ephemeral contradict each other, or an option is for the process
            that runs the sessions and --server says that another one does.
        CompactionDisabledError: if --no-compaction and a setting of compaction contradict each other.
        InvalidParamsError: if a setting is too large, there are no such tools, or the server's token cannot be read.
    """
    context = click.get_current_context()
    file: ConfigFile | None = context.meta.get(CONFIG_FILE)
    server = _server(context, given)
    named: Collection[str] = [name for name in given if _strength(context, name) > FROM_FILE]
    if not {given.get(name) for name in ALIASES} <= {None}:
        given, named = resolved(given, named, at_server=server is not None)
    if server is not None:
        given = {name: value for name, value in given.items() if name not in (*PLACES, *RUNTIME_OPTIONS)}
    store = None if _ephemeral(context, given) else given.get("store")
    memory = _made(MemoryConfig, _present(given, ("embedder", "embedder_folder")))
    tools = tools_given(given, file)
    kinds = kinds_given(given, {name: name in named for name in KINDS}, tools.get("switches"))
    compaction = _compaction(context, given)
    both = _present(given, ("model", "provider", "durability", *MODEL_OPTIONS)) | {"budget": _budget(given)}
    both["fallback"] = given.get("fallback") or None
    of_turn: dict[str, Any] = {name: kinds.pop(name, None) for name in ("overrides", "approvals")}
    of_runtime: dict[str, Any] = {
        "system_prompt": given.get("system"),
        "compaction": compaction,
        "compactor": _compactor(given, compaction),
        "memory": memory if given.get("memory") else None,
        "record": given.get("record"),
        "hooks_files": tuple(given.get("hooks_files") or ()),
    }
    asked = both if given.get("agent") is None else _beside_agent(given, named, both)
    return Options(
        mode=context.ensure_object(Mode),
        command=context.command_path,
        store=None if _ephemeral(context, given) else store or DEFAULT_STORE,
        store_named=store is not None,
        server=server,
        config=_made(Config, both | of_runtime | tools | kinds | _runtime(given, file)),
        turn=_made(TurnOptions, asked | of_turn | _present(given, (*ANSWER_OPTIONS, "keep_alive"))),
        memory=memory,
        storage=_of_table("storage", file) | _present(given, STORAGE_OPTIONS),
        gateway=_of_table("serve", file) | ({"jwt": jwt} if (jwt := _of_table("jwt", file)) else {}),
        **_present(
            given, ("tenant", "stream", "agent", "label", "title", "key", "not_before", "attach", "approve_all")
        ),
    )


def _beside_agent(given: Mapping[str, Any], named: Collection[str], both: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a session of an agent: those that are nearer than the file.

    Raises InvalidParamsError for instructions, which the agent has.
    """
    if "system" in named:
        raise FieldValueError("system_prompt", "does not go with `agent`, which has its own").refusal()
    limits = {name: value for name, value in given.items() if name not in BUDGET or name in named}
    return {name: value for name, value in both.items() if name in named} | {"budget": _budget(limits)}


def _present(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options among some that have a value."""
    return {name: given[name] for name in names if given.get(name) is not None}


def _of_table(table: str, file: "ConfigFile | None") -> dict[str, Any]:
    """Return the settings of a table from variables and the file, for commands without options for them."""
    return {} if file is None else file.settings(table)


def _budget(given: Mapping[str, Any]) -> Budget | None:
    """Return the limits that were given, if any. Raises InvalidParamsError if a limit is too large."""
    limits = {field: given[name] for name, field in BUDGET.items() if given.get(name) is not None}
    return _made(Budget, limits, {field: name for name, field in BUDGET.items()}) if limits else None


def _runtime(given: Mapping[str, Any], file: "ConfigFile | None") -> dict[str, Any]:
    """Return the settings of the runtime in tables; an option wins over variables and the file."""
    turn = Limits().turn.overridden(_made(Budget, _of_table("limits.turn", file)))
    limits = _of_table("limits", file) | _present(given, LIMIT_OPTIONS)
    traces = _of_table("traces", file)  # any of them asks for traces
    return {
        "limits": _made(Limits, limits | {"turn": turn}),
        "retry": _made(RetryPolicy, _of_table("retry", file)),
        "intensity": _made(Intensity, _of_table("intensity", file)),
        "traces": _made(TraceConfig, traces, {name: f"traces.{name}" for name in traces}) if traces else None,
        "model_servers": _model_servers(given, file),
        **({} if file is None else _of_file(file)),
    }


def _of_file(file: "ConfigFile") -> dict[str, Any]:
    """Return the settings of the runtime that only a file has."""
    names = "models", "tenants", "agents", "agent_tenants", "agent_folders"
    return {name: getattr(file, name) for name in names} | {"hook_commands": file.hooks}


def _model_servers(given: Mapping[str, Any], file: "ConfigFile | None") -> tuple[ModelServer, ...]:
    """Return the servers of models. An address among the options is that of the provider among them."""
    found = {} if file is None else {server.name: server for server in file.model_servers}
    url, name = given.get("base_url"), given.get("provider")
    if url is None:
        return tuple(found.values())
    if name is None:
        raise InvalidParamsError.at("$.base_url", "needs --provider: the name of the server")
    server = found.get(name)
    named = ModelServer(name=name, base_url=url) if server is None else attrs.evolve(server, base_url=url)
    return tuple((found | {name: named}).values())


def _server(context: click.Context, given: Mapping[str, Any]) -> "Server | None":
    """Return the server of a command; None if it has none, or if the user named a store nearer to the command.

    Options of the runtime that were set farther away than the server, such as in the file, do not matter then.
    """
    if given.get("server") is None:
        if given.get("server_token_file") is not None:
            raise click.UsageError("--token-file needs --server.", context)
        return None
    strength = _strength(context, "server")
    for name in PLACES:
        if given.get(name) and _strength(context, name) >= strength:
            if _strength(context, name) > strength:
                return None
            raise click.UsageError(f"--server and --{name} exclude each other.", context)
    for param in context.command.params:
        if param.name in RUNTIME_OPTIONS and _strength(context, param.name) >= strength:
            problem = "it is for the process that runs the sessions, and --server names another one."
            raise click.BadParameter(problem, context, param)
    from warren.transport.cli.named_server import server_of  # noqa: PLC0415 - few commands have a server

    return server_of(given["server"], given.get("server_token_file"), os.environ)


def _ephemeral(context: click.Context, given: Mapping[str, Any]) -> bool:
    """Tell whether nothing is to be kept; the command line wins over the environment, the environment over the file."""
    if not given.get("ephemeral"):
        return False
    if given.get("store") is None:
        return True
    named, unnamed = _strength(context, "store"), _strength(context, "ephemeral")
    if named == unnamed:
        raise click.UsageError("--store and --ephemeral exclude each other.", context)
    return unnamed > named


def _compaction(context: click.Context, given: Mapping[str, Any]) -> CompactionConfig | None:
    """Return the settings of compaction; None if it is off.

    --no-compaction wins over settings from weaker sources, and contradicts a setting from the same or a stronger one.
    The settings in a file never contradict it.
    """
    if "no_compaction" not in given:
        return None
    settings = {name: given[name] for name in COMPACTION_FIELDS if given[name] is not None}
    if not given["no_compaction"]:
        return _made(CompactionConfig, settings)
    least = max(_strength(context, "no_compaction"), FROM_FILE + 1)
    asked = [*settings, *(["compactor"] if given["compactor"] is not None else [])]
    if any(_strength(context, name) >= least for name in asked):
        raise CompactionDisabledError("session compaction is disabled by --no-compaction")
    return None


def _compactor(given: Mapping[str, Any], compaction: CompactionConfig | None) -> "Compactor | NewCompactor | None":
    """Return the user's own compactor; None for the default one. Raises InvalidParamsError if it is none."""
    name = given.get("compactor")
    if name is None or compaction is None:
        return None
    from warren.transport.cli.settings.compactors import load_compactor  # noqa: PLC0415 - few have one

    return load_compactor(name, compaction)


def _made(cls: Callable[..., T], settings: Mapping[str, Any], names: Mapping[str, str] | None = None) -> T:
    """Return an object made of options. Raises InvalidParamsError that names the bad option."""
    try:
        return cls(**settings)
    except FieldValueError as exc:
        raise InvalidParamsError.at(f"$.{(names or {}).get(exc.field, exc.field)}", exc.problem) from None


def _strength(context: click.Context, name: str) -> int:
    source = context.get_parameter_source(name)
    return WEAKEST_FIRST.index(source) if source in WEAKEST_FIRST else 0


def _load_config(context: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """Make the settings of the configuration file the defaults of the command's options; return the file's path."""
    path = value or (DEFAULT_CONFIG if _there(DEFAULT_CONFIG) else None)
    if path is not None or variables_in(os.environ):
        from warren.transport.cli.settings.file import read_config  # noqa: PLC0415 - few have a file

        context.meta[CONFIG_FILE] = found = read_config(path, os.environ)
        context.default_map = dict(found.defaults)
    return path


def _there(path: Path) -> bool:
    """Tell whether a file is there; a file in a folder that this user may not read is not."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _set_json(context: click.Context, _: click.Parameter, value: str) -> str:
    context.ensure_object(Mode).json = value == "json"
    return value


def _set_verbose(context: click.Context, _: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's
    context.ensure_object(Mode).verbose = value
    return value


log_option: Final = option(
    json_lines.OPTION,
    type=click.Choice(["text", "json"]),
    default="text",
    help="How all of stderr is written; json is one object a line, those of the log with the session and the turn.",
)
output_options: Final = group(
    option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        is_eager=True,
        callback=_set_json,
        help="How results (stdout) and errors (stderr) are written; text by default.",
    ),
    option(
        "-v",
        "--verbose",
        is_flag=True,
        is_eager=True,
        callback=_set_verbose,
        help="Write events, the log and tracebacks to stderr.",
    ),
    log_option,
)
config_option: Final = option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    is_eager=True,
    callback=_load_config,
    help="TOML file with settings; .rkat/config.toml by default, if there is one.",
)
store_options: Final = group(
    of_field(OfCommands, "store", type=place_of, metavar="DIR|URL"),
    of_field(OfCommands, "ephemeral", is_flag=True),
    config_option,
)
model_options: Final = group(
    of_field(TurnOptions, "model", "-m", "--model", note="See `warren models`."),
    of_field(TurnOptions, "provider", "-p", "--provider"),
    of_field(OfCommands, "base_url", metavar="URL"),
    *(of_field(TurnOptions, name) for name in MODEL_OPTIONS),
    of_field(Limits, "model_silence"),
    of_field(OfCommands, "record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE"),
)
project_option: Final = of_field(
    PostgresConfig, "project", type=click.Path(path_type=Path, file_okay=False), metavar="DIR"
)
token_file_option: Final = of_field(OfCommands, "token_file", type=click.Path(path_type=Path), metavar="FILE")
token_table_option: Final = option(
    "--token-table/--no-token-table",
    default=None,
    help="The tokens that clients may have are in the store, which has to be in a database.",
)
storage_options: Final = group(
    of_field(StoreConfig, "synchronous"),
    of_field(StoreConfig, "projections", "--projections/--no-projections", default=None),
    project_option,
)
compaction_options: Final = group(
    *(of_field(CompactionConfig, field, flag, field) for flag, field in COMPACTION_FLAGS.items()),
    of_field(OfCommands, "compactor", metavar="MODULE:NAME"),
    option("--no-compaction", is_flag=True, help="Never compact, however long a session gets."),
)
embedder_option: Final = group(
    option(
        "--embedder",
        type=embedder_of,
        default=BM25,
        metavar="NAME",
        help=f"What makes the memory's vectors: {KNOWN}; {BM25}, which compares words alone.",
    ),
    of_field(MemoryConfig, "embedder_folder", type=click.Path(path_type=Path), metavar="DIR"),
)
memory_options: Final = group(
    of_field(OfCommands, "memory", "--memory/--no-memory", default=False),
    embedder_option,
)
keep_alive_option: Final = of_field(
    *(TurnOptions, "keep_alive", "--keep-alive/--no-keep-alive", "--host-mode/--no-host-mode"),
    default=None,
    variable=False,
)
durability_option: Final = of_field(Config, "durability")
system_option: Final = of_field(SessionRequest, "system_prompt", "--system", "system", metavar="TEXT")
agent_option: Final = of_field(SessionRequest, "agent", metavar="NAME", variable=False)
label_option: Final = click.option("--label", type=label_of, multiple=True, metavar="K=V", help="A label; repeatable.")
attach_option: Final = click.option(
    "--attach",
    type=file_of,
    multiple=True,
    metavar="FILE",
    help="A file that the prompt is about: an image, a PDF, a sound or a text; repeatable.",
)
title_option: Final = of_field(SessionRequest, "title", metavar="TEXT", variable=False)
stream_option: Final = of_field(OfCommands, "stream", "--stream/--no-stream", default=None)

contract_option: Final = option(
    "--contract",
    is_flag=False,
    flag_value="client",
    type=text_of,
    metavar="[VERSION]",
    help="Speak Meerkat's protocol: of this version, as 0.6, or without a value of the one that the client names.",
)


stored_options: Final = group(store_options, output_options)
remembered_options: Final = group(embedder_option, stored_options)
server_option: Final = of_field(OfCommands, "server", metavar="URL")
server_options: Final = group(
    server_option,
    click.option(
        "--token-file",
        "server_token_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Has the token for --server; without it WARREN_TOKEN may be the token.",
    ),
)
shared_options: Final = group(server_options, stored_options)
"""The options of a command about a store as a whole, at a server or by itself."""
tenant_option: Final = of_field(OfCommands, "tenant", type=tenant_of)
reached_options: Final = group(server_options, tenant_option, stored_options)
"""The options of a command for sessions in a store or at a server."""


def _budget_option(name: str, field: str, scope: str) -> Callable[[F], F]:
    about = f"Limit of {scope}: {attributes_of(Budget)[field]}"
    return of_field(Budget, field, f"--{name.replace('_', '-')}", help=about)


def budget_options(scope: str) -> Callable[[F], F]:
    """Return the options of a budget; `scope` is the word for the work that it limits."""
    return group(*(_budget_option(name, field, scope) for name, field in BUDGET.items()))


def turn_options(scope: str) -> Callable[[F], F]:
    """Return the options of a command that runs turns; `scope` is the word for the work that a budget limits."""
    return group(
        model_options,
        budget_options(scope),
        *(of_field(TurnOptions, name, variable=False) for name in ANSWER_OPTIONS),
        tool_options,
        kind_options,
        alias_options,
        keep_alive_option,
        durability_option,
        approve_option,
        compaction_options,
        memory_options,
        stream_option,
        storage_options,
        reached_options,
    )


_runtime_options: Final = (
    budget_options("each session without limits of its own, over all its turns"),
    *(durability_option, compaction_options, memory_options, store_options, storage_options, output_options),
)
serving_options: Final = group(
    *(system_option, model_options, tool_options, kind_options, alias_options), *_runtime_options
)
"""The options of a command that serves sessions to others."""
settings_of_all: Final = group(
    *(system_option, model_options, tool_options, kind_options),
    *_runtime_options,
    *(stream_option, server_option, tenant_option, contract_option),
)
"""The options of several commands, and of a few single ones, that the environment or the file can set."""
session_options: Final = group(
    agent_option, system_option, label_option, title_option, turn_options("the session, over all its turns")
)
"""The options of a command that begins a session."""
