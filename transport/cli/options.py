"""What the commands share: types of values, groups of options, and the options of one command as one object."""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click
from click.core import ParameterSource

from warren.budget import Budget
from warren.compaction_config import CompactionConfig
from warren.errors import CompactionDisabledError, InvalidParamsError
from warren.fields import FieldValueError
from warren.transport.embedders import BM25, BUILT_IN, OPENAI_PREFIX

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STORE: Final = Path(".rkat")
DEFAULT_CONFIG: Final = DEFAULT_STORE / "config.toml"
COMPACTION_FIELDS: Final = tuple(field.name for field in attrs.fields(CompactionConfig))
NOT_SETTINGS: Final = frozenset(
    {"store", "ephemeral", "output", "verbose", "config", "no_compaction", *COMPACTION_FIELDS}
)
WEAKEST_FIRST: Final = (
    ParameterSource.DEFAULT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.ENVIRONMENT,
    ParameterSource.COMMANDLINE,
)
FROM_FILE: Final = WEAKEST_FIRST.index(ParameterSource.DEFAULT_MAP)
UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+", re.ASCII)
PART: Final = re.compile(r"([0-9.]+)(ms|[smhd]|)", re.ASCII)


def text_of(value: str) -> str:
    """Return text that UTF-8 can hold: the shell may hand over any bytes. Raises click.BadParameter."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is not valid UTF-8.") from None
    return value


def folder_of(value: str) -> Path:
    """Return a folder. Raises click.BadParameter for a name that is not UTF-8: SQLite cannot open files there."""
    return Path(text_of(value))


def embedder_of(value: str) -> str:
    """Return the name of an embedder that there is. Raises click.BadParameter."""
    if value in BUILT_IN or text_of(value).removeprefix(OPENAI_PREFIX).strip() not in ("", value):
        return value
    raise click.BadParameter(f"{value!r} is unknown; there are {', '.join(BUILT_IN)} and {OPENAI_PREFIX}MODEL.")


def duration_of(value: str) -> float:
    """Return the seconds of a time span such as 30, 1.5s, 250ms or 1h30m. Raises click.BadParameter."""
    seconds = seconds_of(value)
    if seconds is None or not 0 < seconds < float("inf"):
        raise click.BadParameter(f"{value!r} is not a duration above 0, such as 30, 1.5s, 250ms or 1h30m.")
    return seconds


def label_of(value: str) -> tuple[str, str]:
    """Return key and value of a label K=V. Raises click.BadParameter without a key or without `=`."""
    key, equals, content = text_of(value).partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not of the form K=V.")
    return key, content


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time span, None for what is none; a lone number is seconds."""
    if DURATION.fullmatch(text) is None:
        return None
    return sum(float(number) * UNITS[unit] for number, unit in PART.findall(text))


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
class Options:
    """The options of one command; those it does not have are at their default.

    Attributes:
        store: the store's folder; None keeps nothing.
        store_named: whether the user named the store.
        mode: how results and errors are shown.
        stream: whether the answer is written as it comes; None decides by whether stdout is a terminal.
        compaction: how contexts are compacted; None turns the capability off, as for commands that run no model.
        memory: whether what is compacted away can be found again.
        embedder: what makes the memory's vectors.
    """

    store: Path | None = DEFAULT_STORE
    store_named: bool = False
    mode: Mode = attrs.field(factory=Mode)
    stream: bool | None = None
    model: str | None = None
    provider: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    max_total_tokens: int | None = None
    max_duration: float | None = None
    max_tool_calls: int | None = None
    max_steps: int | None = None
    label: tuple[tuple[str, str], ...] = ()
    compaction: CompactionConfig | None = None
    memory: bool = False
    embedder: str = BM25

    @property
    def budget(self) -> Budget | None:
        """The limits that were given, if any."""
        limits = (self.max_total_tokens, self.max_duration, self.max_tool_calls, self.max_steps)
        return None if limits == (None,) * 4 else Budget(*limits)


def gather(given: Mapping[str, Any]) -> Options:
    """Return the running command's options as one object.

    Raises click.UsageError where --store and --ephemeral contradict, CompactionDisabledError where --no-compaction
    and a setting of compaction do, InvalidParamsError for a setting that is too large.
    """
    context = click.get_current_context()
    store = None if _ephemeral(context, given) else given.get("store")
    return Options(
        store=None if _ephemeral(context, given) else store or DEFAULT_STORE,
        store_named=store is not None,
        mode=context.ensure_object(Mode),
        compaction=_compaction(context, given),
        **{name: value for name, value in given.items() if name not in NOT_SETTINGS},
    )


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
        return _config(settings)
    least = max(_strength(context, "no_compaction"), FROM_FILE + 1)
    if any(_strength(context, name) >= least for name in settings):
        raise CompactionDisabledError("session compaction is disabled by --no-compaction")
    return None


def _config(settings: Mapping[str, int]) -> CompactionConfig:
    try:
        return CompactionConfig(**settings)
    except FieldValueError as exc:
        raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from None


def _strength(context: click.Context, name: str) -> int:
    source = context.get_parameter_source(name)
    return WEAKEST_FIRST.index(source) if source in WEAKEST_FIRST else 0


def _load_config(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    """Let a file decide what neither the command line nor the environment does."""
    if value is None and not _there(DEFAULT_CONFIG):
        return
    from warren.transport.cli.config_file import read_defaults  # noqa: PLC0415 - few have a file

    context.default_map = read_defaults(value or DEFAULT_CONFIG)


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


def _group(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option that the environment can set too, as WARREN_<NAME>."""
    name = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "WARREN_" + name.removeprefix("--").replace("-", "_").upper()
    in_environment: dict[str, Any] = {"envvar": variable, "show_envvar": True}
    return click.option(*names, **in_environment | settings)


_COUNT: Final = click.IntRange(min=1)

output_options: Final = _group(
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
store_options: Final = _group(
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
model_options: Final = _group(
    option("-m", "--model", type=text_of, metavar="NAME", help="The model; see `warren models`."),
    option(
        "-p", "--provider", type=text_of, metavar="NAME", help="Its provider, instead of the one its name suggests."
    ),
    option("--max-tokens", type=_COUNT, metavar="N", help="Cap of one answer, in tokens."),
)
compaction_options: Final = _group(
    option(
        "--compact-threshold",
        "auto_compact_threshold",
        type=_COUNT,
        metavar="N",
        help="Summarise what the model sees from so many tokens on; by default 100000, or what its window allows.",
    ),
    option(
        "--compact-keep",
        "recent_turn_budget",
        type=click.IntRange(min=0),
        metavar="N",
        help="How many of the newest exchanges stay as they are; 4.",
    ),
    option(
        "--compact-summary-tokens",
        "max_summary_tokens",
        type=_COUNT,
        metavar="N",
        help="Cap of a summary, in tokens; 4096.",
    ),
    option(
        "--compact-every",
        "min_turns_between_compactions",
        type=click.IntRange(min=0),
        metavar="N",
        help="Fewest model calls from one summary to the next; 3.",
    ),
    option(
        "--context-window",
        "window",
        type=_COUNT,
        metavar="N",
        help="Tokens that a request may hold; by default what is known of the model.",
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
memory_options: Final = _group(
    option(
        "--memory/--no-memory",
        default=False,
        help="Remember what is summarised away, so that the model can search it; off by default.",
    ),
    embedder_option,
)
system_option: Final = option("--system", type=text_of, metavar="TEXT", help="The session's system prompt.")
label_option: Final = click.option("--label", type=label_of, multiple=True, metavar="K=V", help="A label; repeatable.")
stream_option: Final = click.option(
    "--stream/--no-stream",
    default=None,
    help="Write the answer as it comes, or whole at its end. By default it streams on a terminal.",
)


def budget_options(scope: str) -> Callable[[F], F]:
    """Return the options of a budget; `scope` says what it limits."""
    return _group(
        option("--max-total-tokens", type=_COUNT, metavar="N", help=f"Limit of {scope}: tokens in and out."),
        option("--max-duration", type=duration_of, metavar="TIME", help=f"Limit of {scope}: time, as 90, 5m, 1h30m."),
        option("--max-tool-calls", type=_COUNT, metavar="N", help=f"Limit of {scope}: tool calls."),
        option("--max-steps", type=_COUNT, metavar="N", help=f"Limit of {scope}: model calls."),
    )
