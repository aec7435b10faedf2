"""The commands of `warren memory`, their arguments and their help."""

from typing import Any

import attrs
import click

from warren.requests import ForgetRequest, SearchRequest
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import ID_HELP, examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import embedder_option, gather, reached_options, remembered_options
from warren.transport.cli.values import text_of


@click.group(cls=CommandGroup)
def memory() -> None:
    """Search the memory, and look after it.

    These commands open the memory of the store themselves; a gateway may use it at the same time. Only `search` and
    `forget` can ask a gateway with --server.
    """


@memory.command(
    "search",
    epilog=examples(
        'warren memory search "which doors are blue"',
        'warren memory search "which doors are blue" --session last --limit 3',
        "warren memory search --batch < queries.jsonl",
    ),
)
@click.argument("query", type=text_of, required=False)
@click.option("--session", type=text_of, metavar="ID", help="Search this session: its id, the end of it, or `last`.")
@of_field(
    SearchRequest, "scope", note="By default the session of --session, else all.", variable=False, show_default=False
)
@of_field(SearchRequest, "limit", variable=False, default=attrs.fields(SearchRequest).limit.default)
@click.option("--batch", is_flag=True, help="Read queries from stdin, one JSON object a line.")
@embedder_option
@reached_options
def memory_search(
    query: str | None, session: str | None, scope: str | None, limit: int, *, batch: bool, **given: Any
) -> None:
    """Find remembered texts by their meaning, best first.

    Piped, each hit is a line of fields between tabs: score, its parts by words and by likeness of the vectors (- if
    vectors were not weighed), session, turn, id, text.

    With --batch each line of stdin is {"query", "limit"?, "scope"?, "session_id"?}, and each line of stdout a JSON list
    of its hits {"content", "score", "session_id", "turn", "text_id", "parts"}. A bad line ends it with exit code 2 and
    an error that names the line and the field. Blank lines are skipped.
    """
    from warren.transport.cli.memory import actions as work  # noqa: PLC0415 - help does without it
    from warren.transport.cli.memory.lines import Defaults  # noqa: PLC0415 - the same

    if (query is None) != batch:
        raise click.UsageError("give either a QUERY or --batch.")
    if scope == "session" and session is None and not batch:
        raise click.UsageError("--scope session needs --session.")
    options, asked = gather(given), Defaults(session, scope, limit)
    if query is None:
        work.search_batch(options, asked)
    else:
        work.search(options, query, asked)


@memory.command(
    "forget",
    epilog=examples(
        "warren memory forget last --turn 3",
        "warren memory forget 4f9c --id 12",
        "warren memory forget 4f9c --yes",
        note=ID_HELP,
    ),
)
@click.argument("session", metavar="SESSION", type=text_of)
@of_field(ForgetRequest, "turn", variable=False)
@of_field(ForgetRequest, "text_id", "--id", "text_id", variable=False, metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked.")
@reached_options
def memory_forget(session: str, turn: int | None, text_id: str | None, *, yes: bool, **given: Any) -> None:
    """Remove remembered texts of a session for good: one, those of a turn, or all that are remembered now.

    They do not come back: neither by a later compaction, nor if they are added again. The messages stay in the history
    of the session.
    """
    from warren.transport.cli.memory import actions as work  # noqa: PLC0415 - help does without it

    work.forget_texts(gather(given), session, turn, text_id, ask=not yes)


@memory.command("stats", epilog=examples("warren memory stats", "warren memory stats --output json"))
@remembered_options
def memory_stats(**given: Any) -> None:
    """Show the size of the memory and of its index."""
    from warren.transport.cli.memory import actions as work  # noqa: PLC0415 - help does without it

    work.show_stats(gather(given))


@memory.command("rebuild", epilog=examples("warren memory rebuild", "warren memory rebuild --embedder bag-of-words"))
@remembered_options
def memory_rebuild(**given: Any) -> None:
    """Make the index anew from the remembered texts, by the named embedder.

    The texts do not change. After an interrupt it goes on when the memory is used next.
    """
    from warren.transport.cli.memory import actions as work  # noqa: PLC0415 - help does without it

    work.rebuild(gather(given))


@memory.command(
    "add",
    epilog=examples(
        """echo '{"content": "the key hangs by the door"}' | warren memory add""",
        "warren memory add --store conversations < notes.jsonl",
    ),
)
@remembered_options
def memory_add(**given: Any) -> None:
    """Remember texts from stdin, one JSON object a line.

    Each is {"content", "session_id"?, "turn"?}; without a session they belong to `added`, without a turn to turn 0. The
    same content for the same turn of a session is remembered once, so that the same input can be given again. A bad
    line ends it with exit code 2 and an error that names the line and the field: the lines before it are remembered,
    it and those behind it are not. Blank lines are skipped.
    """
    from warren.transport.cli.memory import actions as work  # noqa: PLC0415 - help does without it

    work.add(gather(given))
