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

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STORE: Final = Path(".rkat")
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

    @property
    def budget(self) -> Budget | None:
        """The limits that were given, if any."""
        limits = (self.max_total_tokens, self.max_duration, self.max_tool_calls, self.max_steps)
        return None if limits == (None,) * 4 else Budget(*limits)


def gather(given: Mapping[str, Any]) -> Options:
    """Return the running command's options as one object.

    Raises click.UsageError where --store and --ephemeral contradict.
    """
    context = click.get_current_context()
    rest = {name: value for name, value in given.items() if name not in ("store", "ephemeral", "output", "verbose")}
    store = None if _ephemeral(context, given) else given.get("store")
    return Options(
        store=None if _ephemeral(context, given) else store or DEFAULT_STORE,
        store_named=store is not None,
        mode=context.ensure_object(Mode),
        **rest,
    )


def _ephemeral(context: click.Context, given: Mapping[str, Any]) -> bool:
    """Tell whether nothing is to be kept; an option on the command line wins over one of the environment."""
    if not given.get("ephemeral"):
        return False
    if given.get("store") is None:
        return True
    sources = context.get_parameter_source("store"), context.get_parameter_source("ephemeral")
    if sources[0] == sources[1]:
        raise click.UsageError("--store and --ephemeral exclude each other.", context)
    return sources[1] == ParameterSource.COMMANDLINE


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
)
model_options: Final = _group(
    option("-m", "--model", type=text_of, metavar="NAME", help="The model; see `warren models`."),
    option(
        "-p", "--provider", type=text_of, metavar="NAME", help="Its provider, instead of the one its name suggests."
    ),
    option("--max-tokens", type=_COUNT, metavar="N", help="Cap of one answer, in tokens."),
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
