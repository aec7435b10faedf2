"""`warren load`: from its options to a run, and from the result to the user."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import msgspec
import trio

from warren.actors.supervision import first_error
from warren.base.extras import missing
from warren.base.fields import FieldValueError
from warren.transport.access.token_list import read_token
from warren.transport.cli.process.ending import graceful_signals
from warren.transport.cli.process.tuning import allow_files, tune
from warren.transport.cli.terminal.streams import Streams
from warren.transport.http.shutdown import Shutdown
from warren.transport.load.plan import BadClients, LoadPlan, Mix, Profile
from warren.transport.load.scenarios import SCENARIOS
from warren.transport.load.target import Target, TargetError

if TYPE_CHECKING:
    from warren.transport.load.diff import Change

PLAN: Final = ("sessions", "turns", "arrival", "rate", "duration", "think", "turn_limit", "seed", "model", "capacity")
PROFILE: Final = ("latency", "chunks", "chunk_size", "chunk_delay")
UNHURRIED: Final = 0.01
"""Seconds between two pieces of the scripted answers, if the mix has things happen in the middle of turns."""
INSIDE: Final = ("capacity", *PROFILE)
LISTED: Final = 20
FAILED: Final = 1
REGRESSED: Final = 1
STOPPED: Final = 130
"""Exit code of a run that was stopped, without a broken promise until then."""


def run_plan(urls: Sequence[str], given: Mapping[str, Any], *, json: bool) -> int:
    """Run the plan of the options against gateways, or against a runtime of its own, and return the exit code.

    Raises click.UsageError, click.ClickException and InvalidParamsError before anything has begun.
    """
    _check_extra()
    plan = plan_of(urls[0] if urls else None, given)
    writes = {name: given[name] for name in ("json_file", "html_file") if given[name] is not None}
    for path in writes.values():
        _check_writable(path)
    tune()
    allow_files(2 * plan.sessions + sum(attrs.astuple(plan.bad_clients)))
    try:
        return trio.run(_run, plan, urls, given, writes, json)
    except* TargetError as group:
        raise click.ClickException(f"no session could be created: {first_error(group)}") from None


def _check_extra() -> None:
    if problem := missing("load", "warren load needs"):
        raise click.ClickException(problem)


def plan_of(url: str | None, given: Mapping[str, Any]) -> LoadPlan:
    """Return the plan of a scenario, changed by the options. Raises InvalidParamsError or click.UsageError."""
    named = [name for name in INSIDE if given[name] is not None]
    if url is not None and named:
        raise click.UsageError(f"--{named[0].replace('_', '-')} is for runs without URL: the gateway has its own.")
    base = SCENARIOS[given["scenario"]] if given["scenario"] is not None else LoadPlan()
    if url is not None:  # the tool belongs to the model of runs without URL
        base = attrs.evolve(base, mix=attrs.evolve(base.mix, tools=0.0))
    if url is None and (given["bad_clients"] or base.bad_clients != BadClients()):
        raise click.UsageError("bad clients need a gateway: name its URL.")
    changes = {name: given[name] for name in PLAN if given[name] is not None}
    if given["prompt"] is not None:
        changes["prompt_min"], changes["prompt_max"] = given["prompt"]
    try:
        changes["mix"] = mix = attrs.evolve(base.mix, **(given["mix"] or {}))
        changes["bad_clients"] = attrs.evolve(base.bad_clients, **(given["bad_clients"] or {}))
        changes["profile"] = _profile(base.profile, mix, given)
        return attrs.evolve(base, **_arrival(base, changes), **changes)
    except FieldValueError as exc:
        raise exc.refusal() from None


def _profile(base: Profile, mix: Mix, given: Mapping[str, Any]) -> Profile:
    """Return the pace of the scripted model: that of the options, else one that is slow enough for the mix."""
    profile = attrs.evolve(base, **{name: given[name] for name in PROFILE if given[name] is not None})
    if mix.disturbs and given["chunk_delay"] is None and not base.chunk_delay:
        return attrs.evolve(profile, chunk_delay=UNHURRIED)
    return profile


def _arrival(base: LoadPlan, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrival for a rate or a duration, without the settings of the scenario's arrival."""
    if "rate" in changes:
        return {} if "arrival" in changes else {"arrival": "open"}
    if "arrival" in changes:
        kept = {"rate": base.rate if changes["arrival"] == "open" else None}
        return kept if "duration" in changes or changes["arrival"] != "closed" else kept | {"duration": None}
    return {"arrival": "soak"} if "duration" in changes and base.arrival == "closed" else {}


def _check_writable(path: Path) -> None:
    """Raise an error before the run if a file cannot be written after it. A new file is removed again."""
    there = os.path.lexists(path)
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as exc:
        raise click.ClickException(f"cannot write {path}: {exc.strerror}") from None


async def _run(
    plan: LoadPlan,
    urls: Sequence[str],
    given: Mapping[str, Any],
    writes: Mapping[str, Path],
    json: bool,  # noqa: FBT001
) -> int:
    from warren.transport.load.live import shown  # noqa: PLC0415 - these need the extra
    from warren.transport.load.page import render  # noqa: PLC0415
    from warren.transport.load.result import CUT_SHORT, to_json  # noqa: PLC0415
    from warren.transport.load.run import run_load  # noqa: PLC0415

    streams = Streams()
    shutdown = Shutdown()

    async def stop(_: int) -> None:
        streams.note("no more turns begin; the finished ones are checked and reported. Ctrl-C again exits at once.")
        shutdown.begin()
        await trio.lowlevel.checkpoint()

    async with _target(plan, urls, given) as target, shown(streams.err) as watch, graceful_signals(stop):
        result = await run_load(plan, target, watch, shutdown)
    made = {"json_file": lambda: to_json(result), "html_file": lambda: render(result).encode()}
    for name, path in writes.items():
        await trio.Path(path).write_bytes(made[name]())
    streams.write(f"{to_json(result).decode()}\n" if json else told(result))
    if result.passed and CUT_SHORT in result.warnings:
        return STOPPED
    return 0 if result.passed else FAILED


@asynccontextmanager
async def _target(plan: LoadPlan, urls: Sequence[str], given: Mapping[str, Any]) -> AsyncIterator[Target]:
    from warren.transport.load.address import address_of  # noqa: PLC0415
    from warren.transport.load.local import local_target  # noqa: PLC0415 - as above
    from warren.transport.load.remote import remote_target  # noqa: PLC0415

    if not urls:
        async with local_target(plan, given["store"]) as target:
            yield target
        return
    token = read_token(given["token_file"]) if given["token_file"] is not None else None
    address, *others = (address_of(url, token) for url in urls)
    async with remote_target(plan, address, given["store"], others) as target:
        yield target


def told(result: Any) -> str:
    """Return a result in words."""
    from warren.transport.load.result import UNCHECKED, unit_of  # noqa: PLC0415 - it needs the extra

    lines = [f"{name:<36}{value:>14,.10g} {unit_of(name)}".rstrip() for name, value in result.figures.items()]
    lines += [f"{code:<36}{count:>14}" for code, count in result.errors.items()]
    lines += [f"warning: {warning}" for warning in result.warnings]
    lines += [f"NOT TRIED {part}" for part in result.untried]
    lines += [f"VIOLATION session {each.session_id}: {each.rule}: {each.detail}" for each in result.violations[:LISTED]]
    if (more := result.violation_count - LISTED) > 0:
        lines.append(f"… and {more} more")
    sessions = int(result.figures["sessions"] - result.figures.get(UNCHECKED, 0))
    lines.append(f"checked {sessions} sessions: {result.violation_count or 'no'} violations")
    return "\n".join(lines) + "\n"


def compare(before: Path, after: Path, fail_over: float | None, *, json: bool) -> int:
    """Compare two results and return the exit code. Raises InvalidParamsError for a file without a result."""
    _check_extra()
    from warren.transport.load import diff as differences  # noqa: PLC0415 - it needs the extra
    from warren.transport.load.result import read_result  # noqa: PLC0415 - the same

    one, other = read_result(before), read_result(after)
    changes = differences.compare(one, other)
    worse = [] if fail_over is None else differences.regressions(changes, fail_over)
    streams = Streams()
    if json:
        data = {"changes": [attrs.asdict(each) for each in changes], "worse": [each.name for each in worse]}
        streams.write(f"{msgspec.json.encode(data).decode()}\n")
    else:
        streams.write("".join(_lines(changes)))
        for name in differences.unlike(one, other):
            streams.note(f"the runs differ in {name}", "yellow")
        for each in worse:
            streams.note(f"{each.name} is worse by {each.worse:.0f} %", "red")
    return REGRESSED if worse else 0


def _lines(changes: "list[Change]") -> list[str]:
    from warren.transport.load.result import unit_of  # noqa: PLC0415 - it needs the extra

    head = f"{'':<36}{'before':>14}{'after':>14}{'ratio':>8}\n"
    return [
        head,
        *(
            f"{f'{each.name} {_in_brackets(unit_of(each.name))}':<36}{each.before:>14,.10g}{each.after:>14,.10g}"
            f"{'' if each.ratio is None else format(each.ratio, '.2f'):>8}\n"
            for each in changes
        ),
    ]


def _in_brackets(unit: str) -> str:
    return f"({unit})" if unit else ""
