"""`warren agents`: the agents that sessions are made of."""

from typing import Final

import click

from warren.agents.spec import AgentDetails, AgentPage
from warren.calls.agents import AgentRequest, AgentsRequest
from warren.calls.base import made
from warren.conversation.agents import SHORT
from warren.transport.cli.command import command
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import moment, note_damaged, show_rows

COLUMNS: Final = ("agent", "version", "here", "model", "tools", "description")


@command("warren agents", "warren agents desk --output json", "warren agents --server ws://127.0.0.1:8420")
@click.argument("name", type=text_of, required=False)
@of_field(AgentsRequest, "offset", variable=False, default=0, show_default=True)
@of_field(AgentsRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def agents(name: str | None, offset: int, limit: int, options: Options) -> None:
    """List the agents by name, or show the one named NAME with its versions.

    Sessions are made of one by `--agent NAME`. Piped, each agent is a line of fields between tabs: agent, version,
    here, model, tools, description; and each version of one: version, time.
    """

    async def listed() -> AgentPage:
        async with open_service(options, takes_up=False, makes=False) as service:
            return await service.perform(made(AgentsRequest, offset=offset, limit=limit))

    async def shown(name: str) -> AgentDetails:
        async with open_service(options, takes_up=False, makes=False) as service:
            return await service.perform(made(AgentRequest, name))

    if name is None:
        page = execute(listed, options)
        show_result(options, page, _show_list, page)
    else:
        found = execute(lambda: shown(name), options)
        show_result(options, found, _show, found)


def _show_list(streams: Streams, page: AgentPage) -> None:
    note_damaged(streams, "agent", page.damaged)
    rows = [
        (
            each.name,
            each.version[:SHORT],
            "yes" if each.here else "no",
            each.model or "",
            " ".join(each.tools),
            each.description,
        )
        for each in page.agents
    ]
    show_rows(streams, COLUMNS, rows, "no agents")


def _show(streams: Streams, found: AgentDetails) -> None:
    spec = found.spec
    streams.note(f"{spec.name}@{found.version[:SHORT]}{f': {spec.description}' if spec.description else ''}")
    if spec.instructions:
        streams.note(spec.instructions, "dim")
    rows = [(each.version[:SHORT], moment(each.created_at)) for each in found.versions]
    show_rows(streams, ("version", "since"), rows, "no session was made of it yet")
