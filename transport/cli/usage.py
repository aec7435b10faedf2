"""`warren usage`: the ledger of a store or a server."""

import attrs
import click

from warren.calls.base import made
from warren.calls.operators import UsageRequest
from warren.conversation.event_text import dollars
from warren.reports.ledger import UsageReport, UsageSums, report_of
from warren.storage.queries import ANY_TENANT, LedgerSums
from warren.transport.cli.command import command
from warren.transport.cli.runtime import execute, open_service, open_store
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import moment_of
from warren.transport.cli.store.chosen import is_there, store_of
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import show_table

UNKNOWN = "unknown"


@command(
    "warren usage --since 7d",
    "warren usage --by model --since 2026-03-01 --until 2026-04-01",
    "warren usage --by tenant --all-tenants --output json | jq .total.cost",
)
@of_field(UsageRequest, "by", variable=False, default="day", show_default=True)
@of_field(UsageRequest, "since", variable=False, type=moment_of, metavar="TIME", note="As 12h or 7d ago, or a date.")
@of_field(UsageRequest, "until", variable=False, type=moment_of, metavar="TIME")
@of_field(UsageRequest, "all_tenants", "--all-tenants", variable=False, is_flag=True)
@of_field(UsageRequest, "offset", variable=False, default=0, show_default=True)
@of_field(UsageRequest, "limit", variable=False, default=100, show_default=True)
@reached_options
def usage(options: Options) -> None:
    """Show the tokens and the cost of models.

    Piped, each row is a line of fields between tabs: key, turns, input tokens, output tokens, tokens read from prompt
    caches, tokens written to them, cost in US dollars, tokens of an unknown price.
    """
    params = click.get_current_context().params
    wanted = made(UsageRequest, **{name: params[name] for name in attrs.fields_dict(UsageRequest)})

    async def of_server() -> UsageReport:
        async with open_service(options, takes_up=False) as service:
            return await service.perform(wanted)

    report = execute(of_server, options) if options.server is not None else _of_store(options, wanted)
    show_result(options, report, _show, report)


def _of_store(options: Options, wanted: UsageRequest) -> UsageReport:
    config = store_of(options, needed=True)
    if config is None or not is_there(config):
        return report_of(wanted.by, {}, wanted.offset, wanted.limit)

    async def work() -> UsageReport:
        tenant = ANY_TENANT if wanted.all_tenants else options.user.tenant
        async with open_store(config) as store:
            sums = await store.read(LedgerSums(tenant, wanted.by, wanted.since, wanted.until))
        return report_of(wanted.by, sums, wanted.offset, wanted.limit)

    return execute(work, options)


def _show(streams: Streams, report: UsageReport) -> None:
    if not report.rows:
        streams.note("no usage")
        return
    rows = [(each.key, *_cells(each, streams)) for each in report.rows]
    if streams.out_is_terminal:
        rows.append(("total", *_cells(report.total, streams)))
    titles = (report.by, "turns", "in", "out", "cached", "written", "cost", "unpriced")
    show_table(streams, titles, rows)
    left = report.count - len(report.rows)
    if left:
        streams.note(f"{left} more rows count in the total; --limit and --offset show them", "dim")


def _cells(sums: UsageSums, streams: Streams) -> tuple[str, ...]:
    """Return the numbers of a row. A cost is told to the millionth on a terminal, and exactly in a pipe."""
    counts = sums.turns, sums.input_tokens, sums.output_tokens, sums.cache_read_tokens, sums.cache_creation_tokens
    if not streams.out_is_terminal:
        cost = UNKNOWN if sums.cost is None else f"{sums.cost:f}"
        return (*map(str, counts), cost, str(sums.unpriced_tokens))
    cost = UNKNOWN if sums.cost is None else dollars(sums.cost)
    # A column without any number is left out.
    cached, unpriced = (
        tuple(f"{each:,}" if each else "" for each in some) for some in (counts[3:], [sums.unpriced_tokens])
    )
    return (*(f"{count:,}" for count in counts[:3]), *cached, cost, *unpriced)
