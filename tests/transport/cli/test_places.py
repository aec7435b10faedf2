"""The place of a bad setting in its file, and the setting that was meant."""

from pathlib import Path

import pytest

from tests.transport.cli.process import Cli
from warren.base.errors import InvalidParamsError
from warren.transport.cli.settings.file import read_config


@pytest.mark.parametrize(
    ("text", "line", "meant"),
    [
        ('model = "echo"\n\n[compaction]\n# a comment\nwindo = 5\n', 5, "compaction.window"),
        ('modle = "echo"\n', 1, "model"),
        ("[limits.turn]\nmax_step = 4\n", 2, "limits.turn.max_steps"),
        ("# one\n\n[limts]\nmax_sessions = 4\n", 3, "limits"),
        ('model = "echo"\nmax_sessions = 4\n', 2, "limits.max_sessions"),
        ('[mcp_servers.a]\ncommand = "x"\n\narg = ["x"]\n', 4, "mcp_servers.a.args"),
        ('[tenants."a.b"]\n\nsession = 3\n', 3, "tenants.a.b.sessions"),
        ('system = """\none\ntwo"""\nstreem = true\n', 4, "stream"),
        ("compaction.windo = 3\n", 1, "compaction.window"),
        ("compaction = { enabled = true, windo = 3 }\n", 1, "compaction.window"),
        ('model = "echo"\r\n\r\nfallbak = ["echo"]\r\n', 3, "fallback"),
    ],
)
def test_an_unknown_setting_has_its_line_and_a_suggestion(tmp_path: Path, text: str, line: int, meant: str) -> None:
    """However the file is laid out, the error names the line where the setting begins, and the nearest known one."""
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode())
    with pytest.raises(InvalidParamsError) as refused:
        read_config(file)
    assert refused.value.message.endswith(f"is not a known field; did you mean `{meant}`? ({file}:{line})")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[limits]\n\nmax_sessions = 0\n", 3),
        ('[serve]\nport = 1\norigins = [\n  "https://example.org",\n  4,\n]\n', 3),
        ('\n[providers.own]\nbase_url = "http://x"\ndialect = "none"\n', 4),
        ("[tenants.a]\nsessions = 0\n", 2),
        ('\n[retention]\nevents = "soon"\n', 3),
    ],
)
def test_a_bad_value_has_its_line(tmp_path: Path, text: str, line: int) -> None:
    """A known setting with a value that it cannot have is found in the file, too."""
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidParamsError) as refused:
        read_config(file)
    assert refused.value.message.endswith(f" ({file}:{line})")


def test_an_unknown_variable_has_a_suggestion(cli: Cli) -> None:
    """A variable below a table that sets nothing is refused with the nearest one that does."""
    ended = cli.run("run", "hello", env={"WARREN_LIMITS_MAX_SESSION": "4"})
    assert (
        "WARREN_LIMITS_MAX_SESSION: there is no such setting; did you mean `WARREN_LIMITS_MAX_SESSIONS`?" in ended.err
    )
    assert (ended.code, ended.out) == (2, "")
