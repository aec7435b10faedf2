"""`warren load failover`: from its options to a run, and from the result to the user."""

import math
from collections.abc import Mapping
from typing import Any, Final

import attrs
import click
import trio

from warren.actors.supervision import first_error
from warren.base.extras import missing
from warren.calls.base import made
from warren.conversation import codec
from warren.transport.cli.load.running import STOPPED
from warren.transport.cli.process.ending import graceful_signals
from warren.transport.cli.process.tuning import allow_files
from warren.transport.cli.terminal.streams import Streams
from warren.transport.load.failover.plan import FailoverPlan
from warren.transport.load.failover.run import FailoverResult
from warren.transport.load.failover.run import run_failover as run_nodes
from warren.transport.load.target import TargetError

FAILED: Final = 1
LISTED: Final = 20


def run_failover(given: Mapping[str, Any], *, json: bool) -> int:
    """Run a plan, and return the exit code.

    Raises click.ClickException if an extra is missing or the nodes do not start, and InvalidParamsError.
    """
    if problem := missing("gateway", "warren load failover needs") or missing("client", "warren load failover needs"):
        raise click.ClickException(problem)
    plan = made(FailoverPlan, **{name: value for name, value in given.items() if value is not None})
    allow_files()
    streams = Streams()
    try:
        result = trio.run(_run, plan, streams)
    except* TargetError as group:
        raise click.ClickException(f"{first_error(group)}") from None
    if result is None:
        return STOPPED
    _show(result, streams, json=json)
    return 0 if result.good else FAILED


async def _run(plan: FailoverPlan, streams: Streams) -> FailoverResult | None:
    """Run a plan until its end, or a signal: then its nodes end, and there is no result."""
    with trio.CancelScope() as scope:

        async def stop(_number: int) -> None:
            scope.cancel()

        async with graceful_signals(stop):
            return await run_nodes(plan, streams.note)
    return None


def _show(result: FailoverResult, streams: Streams, *, json: bool) -> None:
    verdict = result.verdict
    if json:
        data = {"good": result.good, "verdict": attrs.asdict(verdict), "faults": list(map(attrs.asdict, result.faults))}
        streams.write(codec.encode(data).decode() + "\n")
        return
    counts = f"{len(verdict.lost)} lost, {len(verdict.twice)} twice, {len(verdict.out_of_order)} sessions out of order"
    lines = [f"{verdict.acknowledged} turns acknowledged: {counts}, {len(verdict.numbers)} problems with events"]
    times: dict[str, list[float]] = {}
    for each in result.faults:
        times.setdefault(each.fault, []).append(math.inf if each.seconds is None else each.seconds)
    for fault, seconds in times.items():
        span = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        lines.append(f"{fault}: {len(seconds)} times, first turn of a session of the node after {span}")
    lines += [f"lost: {each}" for each in verdict.lost[:LISTED]]
    lines += [f"twice: {each}" for each in verdict.twice[:LISTED]]
    lines += [f"out of order: session {each}" for each in verdict.out_of_order[:LISTED]]
    lines += [f"events: session {each}" for each in verdict.numbers[:LISTED]]
    streams.write("".join(f"{line}\n" for line in lines))
