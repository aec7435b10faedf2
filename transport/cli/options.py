"""What the commands share: types of values, groups of options, and the options of one command as one object."""

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click
from click.core import ParameterSource

from warren.budget import Budget
from warren.categories import Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.config import Intensity, Limits, RetryPolicy
from warren.described import attributes_of
from warren.errors import CompactionDisabledError, InvalidParamsError
from warren.fields import Between, FieldValueError, checks_of, positive
from warren.options import MODEL_OPTIONS, TurnOptions
from warren.tool_config import ToolsConfig
from warren.transport.cli.kinds import KINDS, approve_option, kind_options, kinds_given
from warren.transport.cli.option import group, option
from warren.transport.cli.setting_names import variables_in
from warren.transport.cli.tool_options import TOOLS, tool_options, tools_given
from warren.transport.cli.values import (
    duration_of,
    embedder_of,
    folder_of,
    label_of,
    schema_of,
    text_of,
)
from warren.transport.embedders import BM25, BUILT_IN, OPENAI_PREFIX

if TYPE_CHECKING:
    from warren.transport.cli.config_file import ConfigFile

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
DEFAULT_STORE: Final = Path(".rkat")
DEFAULT_CONFIG: Final = DEFAULT_STORE / "config.toml"
CONFIG_FILE: Final = "warren.config_file"
"""Where the context of a command has the file that was read."""
COMPACTION_FIELDS: Final = tuple(field.name for field in attrs.fields(CompactionConfig))
LIMITS: Final = {
    "max_tokens": "max_total_tokens",
    "max_seconds": "max_duration",
    "max_tool_calls": "max_tool_calls",
    "max_steps": "max_steps",
}
"""The options that have the fields of a budget."""
STORAGE_OPTIONS: Final = ("synchronous", "projections")
LIMIT_OPTIONS: Final = ("model_silence",)
NOT_SETTINGS: Final = frozenset(
    {"store", "ephemeral", "output", "verbose", "config", "no_compaction"}.union(
        COMPACTION_FIELDS, TOOLS, KINDS, STORAGE_OPTIONS, LIMIT_OPTIONS, LIMITS.values()
    )
)
WEAKEST_FIRST: Final = (
    ParameterSource.DEFAULT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.ENVIRONMENT,
    ParameterSource.COMMANDLINE,
)
FROM_FILE: Final = WEAKEST_FIRST.index(ParameterSource.DEFAULT_MAP)


@attrs.define
class Mode:
    """How the process speaks to its user.

    Attributes:
        json: results and errors are JSON.
        verbose: events, log and tracebacks go to stderr.
    """

    json: bool = False
    verbose: bool = False

    @classmethod
    def guess(cls, argv: list[str], environ: Mapping[str, str]) -> "Mode":
        """Return what the arguments ask for, before they are known to be good: errors in them are shown that way."""
        chosen = [environ.get("WARREN_OUTPUT", "")]
        chosen += [after for before, after in pairwise(argv) if before == "--output"]
        chosen += [arg.removeprefix("--output=") for arg in argv if arg.startswith("--output=")]
        return cls(json=chosen[-1] == "json")


@attrs.frozen(kw_only=True)
class Options(TurnOptions):
    """The options of one command; those it does not have are at their default.

    Those of a turn hold for the turn or the session that the command begins.

    Attributes:
        store: the store's folder; None keeps nothing.
        store_named: whether the user named the store.
        mode: how results and errors are shown.
        stream: whether the answer is written as it comes; None decides by whether stdout is a terminal.
        compaction: how contexts are compacted; None turns the capability off, as for commands that run no model.
        compactor: where a strategy of the user's own is, as MODULE:NAME.
        memory: whether what is compacted away can be found again.
        embedder: what makes the memory's vectors.
        drain: seconds that running turns have to finish when the process is told to end; None is as `limits` say.
        tools: which tools there are; None for none, as for commands that run no model.
        switches: which kinds of them the runtime offers.
        gates: which calls the runtime refuses, or lets wait for somebody's word.
        approve_all: whether every call that waits is allowed.
        limits: bounds of the runtime.
        retry: how failed model calls are tried again.
        intensity: restarts of the storage actor.
        storage: settings of the store, by their names in `StoreConfig`; its folder is `store`.
        gateway: settings of the gateway that are no options, by their names in `GatewayConfig`.
        command: the command, as others on the same store are told of it.
    """

    store: Path | None = DEFAULT_STORE
    store_named: bool = False
    mode: Mode = attrs.field(factory=Mode)
    stream: bool | None = None
    system: str | None = None
    label: tuple[tuple[str, str], ...] = ()
    title: str | None = None
    key: str | None = None
    compaction: CompactionConfig | None = None
    compactor: str | None = None
    memory: bool = False
    embedder: str = BM25
    drain: float | None = None
    tools: ToolsConfig | None = None
    switches: Switches = attrs.field(factory=Switches)
    gates: Gates = attrs.field(factory=Gates)
    approve_all: bool = False
    limits: Limits = attrs.field(factory=Limits)
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    intensity: Intensity = attrs.field(factory=Intensity)
    storage: Mapping[str, Any] = attrs.field(factory=dict)
    gateway: Mapping[str, Any] = attrs.field(factory=dict)
    command: str = "warren"


def gather(given: Mapping[str, Any]) -> Options:
    """Return the running command's options as one object.

    Raises click.UsageError where --store and --ephemeral contradict, CompactionDisabledError where --no-compaction
    and a setting of compaction do, InvalidParamsError for a setting that is too large, or for tools that cannot be.
    """
    context = click.get_current_context()
    file = context.meta.get(CONFIG_FILE)
    store = None if _ephemeral(context, given) else given.get("store")
    settings: dict[str, Any] = {
        "store": None if _ephemeral(context, given) else store or DEFAULT_STORE,
        "store_named": store is not None,
        "mode": context.ensure_object(Mode),
        "budget": _budget(given),
        "compaction": _compaction(context, given),
        **_tools(context, given, file),
        "command": context.command_path,
        **_runtime(given, file),
        **{name: value for name, value in given.items() if name not in NOT_SETTINGS},
    }
    return _made(Options, settings)


def _budget(given: Mapping[str, Any]) -> Budget | None:
    """Return the limits that were given, if any. Raises InvalidParamsError for one that is too large."""
    limits = {field: given.get(name) for field, name in LIMITS.items()}
    return None if set(limits.values()) == {None} else _made(Budget, limits, LIMITS)


def _runtime(given: Mapping[str, Any], file: "ConfigFile | None") -> dict[str, Any]:
    """Return the settings of the runtime, its store and its gateway; an option wins over variables and the file."""
    storage = {name: given[name] for name in STORAGE_OPTIONS if given.get(name) is not None}
    limits = {name: given[name] for name in LIMIT_OPTIONS if given.get(name) is not None}
    if file is None:
        return {"limits": Limits(**limits), "storage": storage}
    return {
        "limits": attrs.evolve(file.limits, **limits),
        "retry": file.retry,
        "intensity": file.intensity,
        "storage": file.settings("storage") | storage,
        "gateway": file.settings("serve"),
    }


def _tools(context: click.Context, given: Mapping[str, Any], file: "ConfigFile | None") -> dict[str, Any]:
    """Return what is said of tools; of their kinds as well, by what is nearer to the user than a file."""
    found = tools_given(given, file)
    nearer = {name: _strength(context, name) > FROM_FILE for name in KINDS}
    return found | kinds_given(given, nearer, found.get("switches"))


def _ephemeral(context: click.Context, given: Mapping[str, Any]) -> bool:
    """Tell whether nothing is to be kept; the command line wins over the environment, that over the file."""
    if not given.get("ephemeral"):
        return False
    if given.get("store") is None:
        return True
    named, unnamed = _strength(context, "store"), _strength(context, "ephemeral")
    if named == unnamed:
        raise click.UsageError("--store and --ephemeral exclude each other.", context)
    return unnamed > named


def _compaction(context: click.Context, given: Mapping[str, Any]) -> CompactionConfig | None:
    """Return how to compact, None for not at all.

    Whoever turns it off wins over settings from farther away; a setting from as near, or nearer, cannot be obeyed. A
    file only says how it would be done.
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


def _made(cls: Callable[..., T], settings: Mapping[str, Any], names: Mapping[str, str] | None = None) -> T:
    """Return an object made of options. Raises InvalidParamsError that names the one that does not fit."""
    try:
        return cls(**settings)
    except FieldValueError as exc:
        path = f"$.{(names or {}).get(exc.field, exc.field)}"
        raise InvalidParamsError(f"{path}: {exc.problem}", path=path) from None


def _strength(context: click.Context, name: str) -> int:
    source = context.get_parameter_source(name)
    return WEAKEST_FIRST.index(source) if source in WEAKEST_FIRST else 0


def _load_config(context: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """Let a file decide what neither the command line nor the environment does; return which file it is."""
    path = value or (DEFAULT_CONFIG if _there(DEFAULT_CONFIG) else None)
    if path is not None or variables_in(os.environ):
        from warren.transport.cli.config_file import read_config  # noqa: PLC0415 - few have a file

        context.meta[CONFIG_FILE] = found = read_config(path, os.environ)
        context.default_map = dict(found.defaults)
    return path


def _there(path: Path) -> bool:
    """Tell whether a file is there; one in a folder of somebody else's is not."""
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


def _count(*names: str, help: str, least: int = 1) -> Callable[[F], F]:  # noqa: A002 - click's word
    return option(*names, type=click.IntRange(min=least), metavar="N", help=help)


def _turn_option(name: str, **settings: Any) -> Callable[[F], F]:
    """Return the flag of an option of turns: its field says of which type it is, within which bounds, and for what."""
    about = attributes_of(TurnOptions)[name]
    made = {"help": about[:1].upper() + about[1:], "type": _number(name), "metavar": "N"}
    return option(f"--{name.replace('_', '-')}", **made | settings)


def _number(name: str) -> click.IntRange | click.FloatRange | None:
    """Return the type of an option of turns that is a number, within its bounds; None for no number."""
    field = attrs.fields_dict(TurnOptions)[name]
    checks = checks_of(field)
    between = next((check for check in checks if isinstance(check, Between)), None)
    if field.type == (int | None):
        least = 1 if positive in checks else None
        return click.IntRange(min=least) if between is None else click.IntRange(between.low, between.high)
    if field.type == (float | None) and between is not None:
        return click.FloatRange(between.low, between.high, min_open=between.without_low)
    return None


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
)
store_options: Final = group(
    option("--store", type=folder_of, metavar="DIR", help="Folder of the store; .rkat by default."),
    option("--ephemeral", is_flag=True, help="Keep nothing: no store at all."),
    option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        callback=_load_config,
        help="TOML file with settings; .rkat/config.toml by default, if there is one.",
    ),
)
model_options: Final = group(
    option("-m", "--model", type=text_of, metavar="NAME", help="The model; see `warren models`."),
    option(
        "-p", "--provider", type=text_of, metavar="NAME", help="Its provider, instead of the one its name suggests."
    ),
    *(_turn_option(name) for name in MODEL_OPTIONS),
    option(
        "--model-silence",
        type=duration_of,
        metavar="TIME",
        help="How long a model's server may say nothing before a call has failed; 5m.",
    ),
)
storage_options: Final = group(
    option(
        "--synchronous",
        type=click.Choice(["FULL", "NORMAL"], case_sensitive=False),
        help="How the store writes: FULL survives a power cut, NORMAL is faster and may lose the last turns in one;"
        " FULL.",
    ),
    option(
        "--projections/--no-projections",
        default=None,
        help="Write the sessions out as plain files beside the store; on by default.",
    ),
)
compaction_options: Final = group(
    _count(
        "--compact-threshold",
        "auto_compact_threshold",
        help="Summarise what the model sees from so many tokens on; by default 100000, or what its window allows.",
    ),
    _count(
        "--compact-keep", "recent_turn_budget", least=0, help="How many of the newest exchanges stay as they are; 4."
    ),
    _count("--compact-summary-tokens", "max_summary_tokens", help="Cap of a summary, in tokens; 4096."),
    _count(
        "--compact-every",
        "min_turns_between_compactions",
        least=0,
        help="Fewest model calls from one summary to the next; 3.",
    ),
    _count("--context-window", "window", help="Tokens that a request may hold; by default what is known of the model."),
    option(
        "--compactor",
        type=text_of,
        metavar="MODULE:NAME",
        help="A strategy of your own: an object of a Python module, or a function that makes it.",
    ),
    option("--no-compaction", is_flag=True, help="Never summarise, however long a session gets."),
)
embedder_option: Final = option(
    "--embedder",
    type=embedder_of,
    default=BM25,
    metavar="NAME",
    help=f"What makes the memory's vectors: {', '.join(BUILT_IN)} or {OPENAI_PREFIX}MODEL; {BM25}.",
)
memory_options: Final = group(
    option(
        "--memory/--no-memory",
        default=False,
        help="Remember what is summarised away, so that the model can search it; off by default.",
    ),
    embedder_option,
)
system_option: Final = option("--system", type=text_of, metavar="TEXT", help="The session's system prompt.")
label_option: Final = click.option("--label", type=label_of, multiple=True, metavar="K=V", help="A label; repeatable.")
title_option: Final = click.option(
    "--title",
    type=text_of,
    metavar="TEXT",
    help="The session's title, in place of the first words of its first prompt.",
)
output_schema_option: Final = group(
    _turn_option("output_schema", type=schema_of, metavar="FILE|JSON", envvar=None, show_envvar=False),
    _turn_option("structured_output_retries", envvar=None, show_envvar=False),
)
stream_option: Final = option(
    "--stream/--no-stream",
    default=None,
    help="Write the answer as it comes, or whole at its end. By default it streams on a terminal.",
)


serving_options: Final = group(
    *(system_option, model_options, tool_options, kind_options),
    *(compaction_options, memory_options, store_options, storage_options, output_options),
)
stored_options: Final = group(store_options, output_options)
remembered_options: Final = group(embedder_option, stored_options)


def turn_options(scope: str) -> Callable[[F], F]:
    """Return the options of a command that runs turns; `scope` says what the limits among them limit."""
    return group(
        model_options,
        _count("--max-total-tokens", help=f"Limit of {scope}: tokens in and out."),
        option("--max-duration", type=duration_of, metavar="TIME", help=f"Limit of {scope}: time, as 90, 5m, 1h30m."),
        _count("--max-tool-calls", help=f"Limit of {scope}: tool calls."),
        _count("--max-steps", help=f"Limit of {scope}: model calls."),
        output_schema_option,
        tool_options,
        kind_options,
        approve_option,
        compaction_options,
        memory_options,
        stream_option,
        storage_options,
        stored_options,
    )


session_options: Final = group(
    system_option, label_option, title_option, turn_options("the session, over all its turns")
)
"""The options of a command that begins a session."""
