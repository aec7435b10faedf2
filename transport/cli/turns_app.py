"""The commands that call models, and the list of models: their arguments and their help."""

import os
from pathlib import Path
from typing import Any, Final

import click

from warren.options import TurnOptions
from warren.requests import CompactRequest
from warren.transport.cli.help import ID_HELP, examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import (
    attach_option,
    compaction_options,
    config_option,
    gather,
    log_option,
    memory_options,
    output_options,
    reached_options,
    session_options,
    turn_options,
)
from warren.transport.cli.streams import read_prompt
from warren.transport.cli.values import text_of


@click.command(
    epilog=examples(
        'warren run "What is a warren?"',
        "git diff | warren run --model claude-sonnet-5 --system 'Review this change.'",
        "warren run --ephemeral --output json --max-duration 2m 'Name three colours.'",
        "warren run --label project=burrow --memory 'Let us begin.'",
    )
)
@click.argument("prompt", type=text_of, required=False)
@click.option(
    "--key",
    type=text_of,
    metavar="KEY",
    help="Run again with one key, it shows the first answer: one session, not two.",
)
@attach_option
@session_options
def run(prompt: str | None, **given: Any) -> int:
    """Run PROMPT in a new session and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it. Ctrl-C ends
    the turn and keeps the answer so far; a second one exits at once.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.run(gather(given), read_prompt(prompt, with_pipe=True))


@click.command(
    epilog=examples(
        "warren resume last 'And who lives there?'",
        "warren resume 4f9c --max-steps 5 --stream 'Go on.'",
        "warren resume last - < question.txt",
        note=ID_HELP,
    )
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("prompt", type=text_of, required=False)
@attach_option
@turn_options("this turn")
def resume(session: str, prompt: str | None, **given: Any) -> int:
    """Continue a stored session with PROMPT and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.resume(gather(given), session, lambda: read_prompt(prompt, with_pipe=True))


@click.command(
    epilog=examples(
        "warren chat --memory",
        "warren chat --resume last",
        "printf 'Hello\\nAnd again\\n' | warren chat --model echo",
        note=ID_HELP,
    )
)
@click.option("--resume", "session", type=text_of, metavar="ID", help="Continue this session.")
@session_options
def chat(session: str | None, **given: Any) -> int:
    """Chat: each line is a turn of one session.

    /help lists the commands. Ctrl-C ends the turn; at the prompt it leaves, with exit code 130, Ctrl-D with 0.

    With a pipe for stdin each line of it is a turn, and the exit code is the first one of a failed turn. An interrupted
    turn and a failed /compact do not count.
    """
    from warren.transport.cli import chat as chatting  # noqa: PLC0415 - help does without it

    return chatting.chat(gather(given), session)


@click.command(
    epilog=examples(
        "warren compact last", "warren compact last --instructions 'Keep the names of files.'", note=ID_HELP
    )
)
@click.argument("session", metavar="ID", type=text_of)
@of_field(CompactRequest, "instructions", metavar="TEXT", variable=False)
@compaction_options
@memory_options
@reached_options
def compact(session: str, instructions: str | None, **given: Any) -> None:
    """Summarise the context of a session.

    The next turns go on from the summary and the newest exchanges; the conversation stays readable as it was. Long
    sessions are summarised by themselves.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    turns.compact(gather(given), session, instructions)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples("warren record talk.json -- run 'What is a burrow?'", "warren record talk.json -- serve"),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@log_option
@click.pass_context
def record(context: click.Context, /, *, file: Path, command: tuple[str, ...], **_: Any) -> Any:
    """Run a COMMAND of warren, and record the answers of its models in FILE.

    FILE is a script: `--model scripted:FILE` plays the answers to a session of the same course, with their pieces and
    calls of tools, and calls nobody. Further sessions get files of their own beside it. No keys and no requests are
    written. It is the same as the option --record of the command.
    """
    os.environ["WARREN_RECORD"] = str(file.absolute())
    return context.find_root().command.main(list(command), standalone_mode=False)


@click.command(epilog=examples("warren models", "OPENAI_BASE_URL=http://127.0.0.1:8000/v1 warren models --output json"))
@click.option("--live", is_flag=True, help="Ask each provider that has a key or an address of its own for its models.")
@of_field(TurnOptions, "provider", "-p", "--provider", note="With --live: the only one to ask.")
@config_option
@output_options
def models(*, live: bool, **given: Any) -> int:
    """List the models that can be named.

    For each it says whether it can be called now, or the setting that is missing, and what is known of it: the tokens
    of its window and of an answer, and its prices in US dollars per million tokens.

    Piped, each is a line of fields between tabs: model, provider, usable, window, answer, and the prices of input,
    output, cache read, write for 5m, write for 1h. With --live: model, provider, in the catalog, window, input, output.
    """
    from warren.transport.cli import models as naming  # noqa: PLC0415 - help does without it

    if live:
        return naming.list_live(gather(given))
    naming.list_models(gather(given))
    return 0


COMMANDS: Final = (run, resume, chat, compact, record, models)
