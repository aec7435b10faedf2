"""`--output-schema`: a schema from a file or from the command line, and the data on stdout."""

import json

import pytest

from tests.transport.cli.process import Cli

SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
ANN = {"text": "It is Ann.", "structured": ["no", '{"name": "Ann"}']}
NOBODY = {"text": "Nobody.", "structured": ["no"]}


def test_the_data_is_on_stdout(cli: Cli) -> None:
    """In place of the text, below it where it streams, beside it as JSON; from a file as from the command line."""
    (cli.folder / "person.json").write_text(SCHEMA, encoding="utf-8")
    model = cli.script(ANN)
    for schema in (SCHEMA, "person.json"):
        ended = cli.run("run", "Who?", "--model", model, "--output-schema", schema)
        assert (ended.code, ended.out) == (0, '{"name":"Ann"}\n'), ended
        assert "3 steps" in ended.err
    assert cli.run("resume", "last", "Who?", "--model", model, "--output-schema", SCHEMA).out == '{"name":"Ann"}\n'
    streamed = cli.run("run", "Who?", "--model", model, "--output-schema", SCHEMA, "--stream")
    assert streamed.out == 'It is Ann.\n{"name":"Ann"}\n'
    shown = cli.run("run", "Who?", "--model", model, "--output-schema", SCHEMA, "--output", "json").data
    assert (shown["text"], shown["structured_output"]) == ("It is Ann.", {"name": "Ann"})
    assert 'It is Ann.\n(as data) {"name":"Ann"}\n' in cli.run("sessions", "show", "last").out
    kept = cli.run("sessions", "show", "last", "--output", "json").data
    assert kept["state"]["last_structured_output"] == {"name": "Ann"}
    assert kept["messages"][-1]["message"]["structured_output"] == {"name": "Ann"}


def test_no_data(cli: Cli) -> None:
    """The text is on stdout all the same, and the error says what is wrong; as JSON it has all of it."""
    command = ("run", "Who?", "--model", cli.script(NOBODY), "--output-schema", SCHEMA)
    ended = cli.run(*command)
    assert (ended.code, ended.out) == (1, "Nobody.\n"), ended
    assert "does not fit the schema" in ended.err
    error = cli.run(*command, "--output", "json").error
    assert (error["code"], error["details"]["cause"]) == ("AGENT_ERROR", "structured_output")
    assert error["details"]["text"] == "Nobody."
    assert json.dumps(error["details"]["errors"])
    once = cli.run("run", "Who?", "--model", cli.script(ANN), *command[4:], "--structured-output-retries", "0")
    assert (once.code, once.out) == (1, "It is Ann.\n"), once


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ("no-such-file.json", "no-such-file.json"),
        ("{", "not JSON"),
        ("list.json", "not a JSON object"),
        ('{"type": "x"}', "output_schema.type"),
        ("", "cannot be read"),
    ],
)
def test_bad_schemas(cli: Cli, schema: str, word: str) -> None:
    """Nothing runs, the exit code is that of bad input, and the message names what is bad."""
    (cli.folder / "list.json").write_text("[]", encoding="utf-8")
    ended = cli.run("run", "Who?", "--model", "echo", "--output-schema", schema)
    assert (ended.code, ended.out) == (2, ""), ended
    assert word in ended.err.splitlines()[-1]
