"""`warren load`: its commands and their options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click

from warren.transport.cli.command import command, examples
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.load.running import compare, run_plan
from warren.transport.cli.settings.option import group, of_field
from warren.transport.cli.settings.options import output_options
from warren.transport.cli.settings.values import folder_of, text_of
from warren.transport.load.failover.plan import FAULTS, OF_DATABASE, FailoverPlan
from warren.transport.load.plan import BadClients, LoadPlan, Mix, Profile
from warren.transport.load.scenarios import SCENARIOS

N = TypeVar("N", int, float)


def _names(cls: type) -> tuple[str, ...]:
    return tuple(attrs.fields_dict(cls))


FILE: Final = click.Path(path_type=Path, dir_okay=False)
PROMPTS: Final = f"{LoadPlan().prompt_min}-{LoadPlan().prompt_max}"
MIXED: Final = "Shares from 0 to 1, as interrupts=0.1,tools=0.3; of " + ", ".join(_names(Mix)) + "."
BAD: Final = "With URL: bad clients besides the users, as idle=500,slow=50; of " + ", ".join(_names(BadClients)) + "."


def mix_of(value: str) -> dict[str, float]:
    """Return the shares of a mix. Raises click.BadParameter for a bad one."""
    return _numbers(value, _names(Mix), float, "a number from 0 to 1")


def bad_clients_of(value: str) -> dict[str, int]:
    """Return the number of bad clients of each kind. Raises click.BadParameter for a bad value."""
    return _numbers(value, _names(BadClients), int, "a whole number")


def _numbers(value: str, names: tuple[str, ...], read: Callable[[str], N], wanted: str) -> dict[str, N]:
    found: dict[str, N] = {}
    for part in filter(None, value.split(",")):
        name, _, number = part.strip().partition("=")
        if name not in names:
            raise click.BadParameter(f"{name!r} is unknown; there are {', '.join(names)}.")
        try:
            found[name] = read(number)
        except ValueError:
            raise click.BadParameter(f"{number!r} of {name} is not {wanted}.") from None
    return found


def prompt_of(value: str) -> tuple[int, int]:
    """Return the shortest and the longest prompt, from N or MIN-MAX. Raises click.BadParameter for a bad value."""
    low, dash, high = value.partition("-")
    try:
        return int(low), int(high if dash else low)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a size, such as 200 or 40-2000.") from None


def _of_plan(name: str, *names: str, note: str = "", **settings: Any) -> Any:
    return of_field(LoadPlan, name, *names, note=note, variable=False, **settings)


def _of_model(name: str) -> Any:
    return of_field(Profile, name, note="Without URL.", variable=False)


load_options: Final = group(
    click.option(
        "--scenario", type=click.Choice(tuple(SCENARIOS)), help="Begin with this plan; other options change it."
    ),
    _of_plan("sessions"),
    _of_plan("turns"),
    _of_plan("arrival", note="--rate and --duration suggest another one."),
    _of_plan("rate", type=click.FloatRange(min=0, min_open=True), metavar="R"),
    _of_plan("duration"),
    _of_plan("think"),
    click.option("--mix", type=mix_of, metavar="SHARES", help=MIXED),
    click.option("--bad-clients", type=bad_clients_of, metavar="NUMBERS", help=BAD),
    click.option("--prompt", type=prompt_of, metavar="MIN-MAX", help=f"Characters of a prompt; {PROMPTS}."),
    _of_plan("turn_limit"),
    _of_plan("seed", type=int),
    _of_plan("model", "-m", "--model"),
)
inside_options: Final = group(
    *(_of_model(field.name) for field in attrs.fields(Profile)),
    _of_plan("capacity", note="Without URL."),
)


class _Group(CommandGroup):
    """`warren load URL` is `warren load run URL`, and so is `warren load` with options alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Group,
    epilog=examples(
        "warren load --sessions 200 --turns 10 --store /tmp/load",
        "warren load ws://127.0.0.1:8420 --scenario steady --html report.html",
        "warren load diff before.json after.json --fail-over 20",
        note="`warren load` alone is `warren load run`; `warren load run --help` has its options.",
    ),
)
def load() -> None:
    """Run many sessions at once, measure them, and check every one of them to its last row.

    The exit code is 0 if every promise was kept, and 1 if one was broken: an event out of order, a turn without
    exactly one end, an answer in the wrong session, a lost message. The session is named.
    """


@command(
    "warren load run --sessions 1000 --turns 5 --latency 50ms",
    "warren load run --store /tmp/load --mix interrupts=0.1,disconnects=0.1,tools=0.3,subscribers=0.2",
    "warren load run --rate 200 --duration 30s --json open.json --html open.html",
    "warren load run ws://127.0.0.1:8420 --sessions 500 --think 200ms --token-file token.txt",
    "warren load run ws://10.0.0.5:8420 ws://10.0.0.6:8420 --mix disconnects=0.1,subscribers=0.2",
    "warren load run --scenario overload --capacity 20",
    of=load,
)
@click.argument("url", type=text_of, nargs=-1)
@load_options
@inside_options
@click.option(
    "--store",
    type=folder_of,
    metavar="DIR",
    help="Keep sessions there; with URL: the gateway's own, to count its rows.",
)
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Has the token of the gateway.")
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the result there, for `warren load diff`.")
@click.option("--html", "html_file", type=FILE, metavar="FILE", help="Write a report with charts there.")
@output_options
@click.pass_context
def run(context: click.Context, /, url: tuple[str, ...]) -> int:
    """Put load on the gateway at URL, on several of the same sessions, or on a runtime in this process.

    Without URL the model follows a script: it answers after --latency in --chunks pieces, and calls tools. With URL the
    gateway's own model answers, or --model; `echo` and `scripted:FILE` cost nothing.

    \b
    steady     users who read, think, use tools, interrupt, lose their connection
    burst      a thousand sessions that all begin at once
    soak       ten minutes of everything
    overload   more turns than are admitted: refused at once, and well again after
    reconnect  every other turn loses its client in the middle
    siege      users at a gateway that others hold idle connections to, flood, and send bad heads and frames (URL)

    Latency counts from the moment a turn was meant to start, so an open run (--rate) shows what a slow target makes
    others wait. Figures go to stdout, progress to stderr.
    """  # noqa: D301 - click's mark for lines that are not to be filled
    return run_plan(url, context.params, json=context.obj.json)


def _of_failover(name: str, *names: str, **settings: Any) -> Any:
    return of_field(FailoverPlan, name, *names, variable=False, **settings)


def faults_of(value: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


failover_options: Final = group(
    _of_failover("store", "--store", required=True, type=text_of, metavar="URL|DIR"),
    *(_of_failover(name) for name in ("nodes", "sessions", "rounds", "lease")),
    click.option(
        "--faults",
        type=faults_of,
        metavar="KINDS",
        help=f"Of {', '.join(FAULTS)}, with commas; by default all, and on a folder"
        f" {', '.join(each for each in FAULTS if each not in OF_DATABASE)}.",
    ),
    _of_failover("seed", type=int),
)


@command(
    "warren load failover --store postgresql:///test --nodes 3 --rounds 8",
    "warren load failover --store /tmp/failover",
    of=load,
)
@failover_options
@output_options
@click.pass_context
def failover(context: click.Context, /) -> int:
    """Start nodes on a store, put load on all of them, let them fail, and check every acknowledged turn.

    Users send prompts to any node while nodes are killed, stopped, and cut off from their database. At the end each
    answered prompt has to be in its session once and in order, and each follower of a session has to have every stored
    event once. The exit code is 1 if one is not.

    Use a database or a folder of its own: the run fills it with sessions.
    """
    from warren.transport.cli.load.failover import run_failover  # noqa: PLC0415 - it needs the extra `client`

    names = attrs.fields_dict(FailoverPlan)
    return run_failover({name: context.params[name] for name in names}, json=context.obj.json)


@command("warren load diff before.json after.json", "warren load diff before.json after.json --fail-over 20", of=load)
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option(
    "--fail-over",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    help="Exit with 1 if latency grew, or turns and events a second fell, by more than this.",
)
@output_options
@click.pass_context
def diff(context: click.Context, /, before: Path, after: Path, fail_over: float | None) -> int:
    """Compare two results that `--json` has written: each figure, and its growth."""
    return compare(before, after, fail_over, json=context.obj.json)
