"""The settings of compaction and the configuration file: which of them wins, and what is refused."""

import socket
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from tests.transport.cli.parsing import parse
from tests.transport.cli.process import Cli
from tests.transport.cli.settings import by_default
from warren.base.errors import CompactionDisabledError, InvalidParamsError
from warren.base.tenant_limits import TenantLimits
from warren.conversation.budget import Budget
from warren.conversation.options import CompactionConfig
from warren.settings.config import Intensity, Limits, RetryPolicy, StoreConfig
from warren.transport.cli.runtime import config_of
from warren.transport.cli.settings.file import read_config
from warren.transport.cli.settings.names import BUDGET
from warren.transport.cli.settings.options import COMPACTION_FIELDS
from warren.transport.cli.settings.table import SETTINGS
from warren.transport.cli.store.chosen import store_of

pytestmark = pytest.mark.usefixtures("folder")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
EVERYTHING = """
store = "elsewhere"
model = "gpt-x"
provider = "openai"
system = "be brief"
stream = false
max_tokens = 1
max_total_tokens = 2
max_duration = "1m30s"
max_tool_calls = 3
max_steps = 4

[compaction]
auto_compact_threshold = 5
recent_turn_budget = 0
max_summary_tokens = 6
min_turns_between_compactions = 0
window = 7
"""
RUNTIME = """
[limits]
max_sessions = 1
mailbox = 2
tool_timeout = "3s"
tool_threads = 4
event_log = 6
max_live = 7
max_memory = 8000
idle_after = "0"
interrupt_grace = "1m30s"
drain = "250ms"

[limits.turn]
max_total_tokens = 8
max_duration = "9"
max_tool_calls = 10
max_steps = 11

[retry]
max_attempts = 12
initial_delay = "13"
factor = 1.5
jitter = 0
max_delay = "14s"
max_retry_after = "15m"
"""
OFF = "[compaction]\nenabled = false\nwindow = 7\n"


@pytest.mark.parametrize(
    ("name", "value", "config"),
    [
        ("--compact-threshold", 9, CompactionConfig(auto_compact_threshold=9)),
        ("--compact-keep", 0, CompactionConfig(recent_turn_budget=0)),
        ("--compact-summary-tokens", 9, CompactionConfig(max_summary_tokens=9)),
        ("--compact-every", 0, CompactionConfig(min_turns_between_compactions=0)),
        ("--context-window", 9, CompactionConfig(window=9)),
    ],
)
def test_each_setting_of_compaction_has_an_option(name: str, value: int, config: CompactionConfig) -> None:
    """It is set on the command line or by its variable; the others stay at their default."""
    variable = "WARREN_" + name.removeprefix("--").replace("-", "_").upper()
    assert parse(name, str(value)).config.compaction == config
    assert parse(**{variable: str(value)}).config.compaction == config
    assert parse(name, str(value), **{variable: "77"}).config.compaction == config


@pytest.mark.parametrize(
    ("argv", "environ", "file"),
    [
        (["--no-compaction"], {}, ""),
        ([], {"WARREN_NO_COMPACTION": "1"}, ""),
        ([], {}, OFF),
        (["--no-compaction"], {"WARREN_COMPACT_KEEP": "1"}, EVERYTHING),
        ([], {"WARREN_NO_COMPACTION": "1"}, EVERYTHING),
        (["--no-compaction"], {}, OFF),
    ],
)
def test_compaction_is_turned_off(folder: Path, argv: list[str], environ: dict[str, str], file: str) -> None:
    """Settings from farther away do not matter to whoever turns it off, and a file may keep them."""
    by_default(folder, file)
    assert parse(*argv, **environ).config.compaction is None


@pytest.mark.parametrize(
    ("argv", "environ", "file"),
    [
        (["--no-compaction", "--compact-keep", "1"], {}, ""),
        (["--no-compaction", "--context-window", "1"], {}, ""),
        ([], {"WARREN_NO_COMPACTION": "1", "WARREN_COMPACT_EVERY": "1"}, ""),
        (["--compact-summary-tokens", "1"], {"WARREN_NO_COMPACTION": "1"}, ""),
        (["--compact-threshold", "1"], {}, OFF),
        ([], {"WARREN_COMPACT_THRESHOLD": "1"}, OFF),
    ],
)
def test_what_is_off_cannot_be_set(folder: Path, argv: list[str], environ: dict[str, str], file: str) -> None:
    """A setting that is asked for where compaction is off is refused, not passed over."""
    by_default(folder, file)
    with pytest.raises(CompactionDisabledError):
        parse(*argv, **environ)


def test_a_setting_that_no_store_can_hold() -> None:
    """It is refused by the option's name."""
    with pytest.raises(click.BadParameter, match="is more than") as caught:
        parse("--context-window", str(2**63))
    assert "--context-window" in caught.value.format_message()


@pytest.mark.parametrize("name", ["--compact-threshold", "--compact-summary-tokens", "--context-window"])
def test_settings_of_compaction_are_above_zero(name: str) -> None:
    """Zero is refused by the option's name, as for every count."""
    with pytest.raises(click.BadParameter) as caught:
        parse(name, "0")
    assert name in caught.value.format_message()


def test_a_variable_turns_on_what_the_file_turns_off(folder: Path) -> None:
    """WARREN_NO_COMPACTION=0 wins over the file, whose settings hold then."""
    by_default(folder, OFF)
    assert parse(WARREN_NO_COMPACTION="0").config.compaction == CompactionConfig(window=7)


def test_a_file_sets_what_options_set(folder: Path) -> None:
    """Every setting of a file holds where neither the command line nor the environment has its own."""
    by_default(folder, EVERYTHING)
    found = parse()
    assert (found.store, found.store_named) == (Path("elsewhere"), True)
    assert (found.turn.model, found.turn.provider, found.stream, found.turn.max_tokens) == ("gpt-x", "openai", False, 1)
    assert found.turn.budget == Budget(2, 90.0, 3, 4)
    assert found.config.compaction == CompactionConfig(5, 0, 6, 0, 7)


def test_the_nearest_wins(folder: Path) -> None:
    """The command line wins over the environment, and that over the file."""
    by_default(folder, EVERYTHING)
    environ = {"WARREN_MODEL": "by variable", "WARREN_MAX_STEPS": "8", "WARREN_CONTEXT_WINDOW": "8"}
    found = parse("-m", "typed", "--context-window", "9", "--stream", **environ)
    assert (found.turn.model, found.turn.provider, found.stream) == ("typed", "openai", True)
    assert found.turn.budget == Budget(2, 90.0, 3, 8)
    assert found.config.compaction == CompactionConfig(5, 0, 6, 0, 9)


@pytest.mark.parametrize(
    ("argv", "environ", "file", "durability"),
    [
        ([], {}, "", None),
        ([], {}, 'durability = "turn"', "turn"),
        ([], {"WARREN_DURABILITY": "step"}, 'durability = "turn"', "step"),
        (["--durability", "turn"], {"WARREN_DURABILITY": "step"}, "", "turn"),
    ],
)
def test_durability_is_set(
    folder: Path, argv: list[str], environ: dict[str, str], file: str, durability: str | None
) -> None:
    """The flag, the variable and the file set it for the runtime and for the session alike; by default steps count."""
    by_default(folder, file)
    found = parse(*argv, **environ)
    assert (found.config.durability, found.turn.durability) == (durability or "step", durability)


@pytest.mark.parametrize(
    ("argv", "environ", "store"),
    [
        ([], {}, None),
        (["--store", "x"], {}, Path("x")),
        ([], {"WARREN_STORE": "x"}, Path("x")),
        ([], {"WARREN_EPHEMERAL": "0"}, Path(".rkat")),
    ],
)
def test_a_file_keeps_nothing(folder: Path, argv: list[str], environ: dict[str, str], store: Path | None) -> None:
    """`ephemeral = true` holds unless a store is named nearer."""
    by_default(folder, "ephemeral = true\n")
    assert parse(*argv, **environ).store == store


def test_a_file_is_named(folder: Path) -> None:
    """--config and WARREN_CONFIG name another file, which is read in place of the one in .rkat."""
    by_default(folder, 'model = "default file"\n')
    (folder / "mine.toml").write_text('model = "named file"\n')
    assert parse().turn.model == "default file"
    assert parse("--config", "mine.toml").turn.model == "named file"
    assert parse(WARREN_CONFIG="mine.toml").turn.model == "named file"


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("modle = 'x'", "$.config.modle", "is not a known field"),
        ("model = 1", "$.config.model", "must be a string"),
        ("durability = 'steps'", "$.config.durability", "must be one of step, turn"),
        ("stream = 'no'", "$.config.stream", "must be true or false"),
        ("max_steps = 0", "$.config.max_steps", "must be above 0"),
        (f"fallback = {['echo'] * 17}", "$.config.fallback", "must have at most 16 entries"),
        ("max_tokens = 9223372036854775808", "$.config.max_tokens", "must be at most"),
        ("max_duration = '5 x'", "$.config.max_duration", "must be a duration"),
        ("max_duration = '0s'", "$.config.max_duration", "must be a duration"),
        ('store = "a\\u0000b"', "$.config.store", "must not hold NUL"),
        ("compaction = false", "$.config.compaction", "must be an object"),
        ("[compaction]\nwindw = 1", "$.config.compaction.windw", "is not a known field"),
        ("[compaction]\nwindow = 1.5", "$.config.compaction.window", "must be an integer"),
        ("[compaction]\nmax_summary_tokens = 0", "$.config.compaction.max_summary_tokens", "must be above 0"),
        ("[compaction]\nenabled = 0", "$.config.compaction.enabled", "must be true or false"),
        ("limits = 1", "$.config.limits", "must be an object"),
        ("[limits]\nmax_sessions = 0", "$.config.limits.max_sessions", "must be above 0"),
        ("[limits]\nmax_sessions = '5'", "$.config.limits.max_sessions", "must be an integer"),
        ("[limits]\nmax_sesions = 5", "$.config.limits.max_sesions", "is not a known field"),
        ("[limits]\nmailbox = 9223372036854775808", "$.config.limits.mailbox", "must be at most"),
        ("[limits]\ntool_timeout = '0'", "$.config.limits.tool_timeout", "must be a duration above 0"),
        ("[limits]\nidle_after = 60", "$.config.limits.idle_after", "must be a string"),
        ("[limits]\ndrain = 'soon'", "$.config.limits.drain", "must be a duration"),
        ("[limits]\napproval_timeout = '500d'", "$.config.limits.approval_timeout", "must be above 0, and at most"),
        ("[limits.turn]\nmax_steps = 0", "$.config.limits.turn.max_steps", "must be above 0"),
        ("[retry]\nfactor = nan", "$.config.retry.factor", "must be above 0"),
        ("[retry]\njitter = -0.1", "$.config.retry.jitter", "must be from 0 to 1"),
        ("[retry]\njitter = inf", "$.config.retry.jitter", "must be from 0 to 1"),
        ("[retry]\nmax_attempts = true", "$.config.retry.max_attempts", "must be an integer"),
        ("[compaction", "$.config", "Expected"),
        (f"x = {'[' * 5000}", "$.config", ""),
    ],
)
def test_a_bad_file_is_refused_by_its_field(folder: Path, text: str, path: str, problem: str) -> None:
    """The error names the file, the field and what is wrong with it."""
    by_default(folder, text)
    with pytest.raises(InvalidParamsError) as caught:
        parse()
    assert caught.value.path == path
    assert caught.value.message.startswith(f"{path}: ")
    assert problem in caught.value.message
    assert "config.toml" in caught.value.message


def test_a_file_sets_the_bounds_of_the_runtime(folder: Path) -> None:
    """Every setting of the tables reaches the runtime, times in seconds; what is not set is as without a file."""
    by_default(folder, RUNTIME)
    config = config_of(parse(), None)
    turn = Budget(max_tokens=8, max_seconds=9, max_tool_calls=10, max_steps=11)
    assert config.limits == Limits(
        1, 2, turn=turn, tool_timeout=3.0, tool_threads=4, event_log=6, max_live=7,
        max_memory=8000, idle_after=0, interrupt_grace=90.0, drain=0.25,
    )  # fmt: skip
    assert config.retry == RetryPolicy(12, 13.0, 1.5, 0, 14.0, 900.0)
    (folder / "some.toml").write_text("[limits.turn]\nmax_duration = '9'\n[retry]\nmax_attempts = 1\n")
    config = config_of(parse("--config", "some.toml"), None)
    assert config.limits == Limits(turn=Budget(max_seconds=9, max_steps=Limits().turn.max_steps))
    assert config.retry == RetryPolicy(max_attempts=1)


STORAGE = """
[storage]
synchronous = "normal"
busy_timeout = "0"
readers = 3
lease = "1m"
projections = false

[intensity]
restarts = 0
seconds = "1m"

[limits]
model_silence = "2s"

[serve]
max_connections = 5
max_message_bytes = 6
heartbeat = "7s"
"""


def test_a_file_sets_the_store_and_the_gateway(folder: Path) -> None:
    """The settings of the store, its restarts, the wait for a model and the gateway come from the file."""
    by_default(folder, STORAGE)
    options = parse()
    config = config_of(options, store_of(options))
    assert config.store == StoreConfig(
        ".rkat", synchronous="NORMAL", busy_timeout=0, readers=3, lease=60, holder="warren", projections=False
    )
    assert config.intensity == Intensity(0, 60)
    assert config.limits.model_silence == 2
    assert options.gateway == {"max_message_bytes": 6, "heartbeat": 7}


def test_variables_set_what_has_no_option(folder: Path) -> None:
    """Each by its table and name, over the file; without a file, too."""
    environ = {
        "WARREN_STORAGE_LEASE": "20s",
        "WARREN_STORAGE_READERS": "4",
        "WARREN_LIMITS_TURN_MAX_STEPS": "9",
        "WARREN_RETRY_FACTOR": "1.5",
        "WARREN_TOOLS_WRITABLE": "no",
        "WARREN_TOOLS_ENV": "LANG LC_*",
        "WARREN_ROOT": ".",
    }
    for text in ("", STORAGE):
        (folder / "c.toml").write_text(text)
        options = parse(*(("--config", "c.toml") if text else ()), **environ)
        assert (options.storage["lease"], options.storage["readers"]) == (20, 4)
        assert (options.config.limits.turn.max_steps, options.config.retry.factor) == (9, 1.5)
        assert options.config.tools is not None
        assert (options.config.tools.writable, options.config.tools.env) == (False, ("LANG", "LC_*"))


def test_settings_with_a_flag_follow_the_nearest(folder: Path) -> None:
    """The flag wins over its variable, that over the file; commands without the flag follow the variable too."""
    by_default(folder, STORAGE)
    assert parse("--synchronous", "full", WARREN_SYNCHRONOUS="NORMAL").storage["synchronous"] == "FULL"
    assert parse(WARREN_SYNCHRONOUS="full", WARREN_PROJECTIONS="1").storage == {
        **parse().storage, "synchronous": "FULL", "projections": True
    }  # fmt: skip
    assert parse("--model-silence", "3s", WARREN_MODEL_SILENCE="4s").config.limits.model_silence == 3
    assert parse(WARREN_MODEL_SILENCE="4s").config.limits.model_silence == 4
    file = read_config(None, {"WARREN_DRAIN": "5s", "WARREN_SYNCHRONOUS": "NORMAL"})
    assert (file.settings("limits")["drain"], file.settings("storage")) == (5, {"synchronous": "NORMAL"})


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("WARREN_LIMITS_MAILBOX", "0", "must be above 0"),
        ("WARREN_LIMITS_MAILBOX", "many", "must be an integer"),
        ("WARREN_LIMITS_MAILBX", "5", "there is no such setting"),
        ("WARREN_STORAGE_LEASE", "soon", "must be a duration"),
        ("WARREN_LIMITS_APPROVAL_TIMEOUT", "500d", "must be above 0, and at most"),
        ("WARREN_STORAGE_PROJECTIONS", "1", "there is no such setting"),
        ("WARREN_RETRY_JITTER", "-1", "must be from 0 to 1"),
        ("WARREN_RETRY_JITTER", "7", "must be from 0 to 1"),
        ("WARREN_COMPACTION_WINDOW", "5", "there is no such setting"),
        ("WARREN_RETENTION_EVENT", "5d", "there is no such setting"),
        ("WARREN_TOOLS_WRITABLE", "perhaps", "must be true or false"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(variable: str, text: str, problem: str) -> None:
    """The error names the variable and what is wrong with it."""
    with pytest.raises(InvalidParamsError, match=problem) as caught:
        parse(**{variable: text})
    assert caught.value.path == f"$.{variable}"
    assert caught.value.message.startswith(f"$.{variable}: ")


def test_the_variables_of_retention_are_options() -> None:
    """Those that the command has are let through."""
    parse(WARREN_RETENTION_EVENTS="5d", WARREN_RETENTION_AUDIT="5d")


def test_the_store_is_opened_as_it_is_set(cli: Cli) -> None:
    """Without projections there are no files beside the store; they come back by the flag."""
    (cli.folder / ".rkat").mkdir()
    (cli.folder / ".rkat" / "config.toml").write_text("[storage]\nprojections = false\n")
    assert cli.run("run", "x").code == 0
    assert not (cli.folder / ".rkat" / "index.jsonl").exists()
    assert cli.run("run", "x", "--projections").code == 0
    assert (cli.folder / ".rkat" / "index.jsonl").exists()


def test_a_silent_model_is_given_up_in_time(cli: Cli) -> None:
    """A server that takes the request and says nothing is waited for as long as the variable says."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        environ = {"OPENAI_BASE_URL": url, "WARREN_MODEL_SILENCE": "100ms", "WARREN_RETRY_MAX_ATTEMPTS": "1"}
        ended = cli.run("run", "x", "-p", "openai", "-m", "slow", env=environ)
    assert (ended.code, ended.out) == (1, "")
    assert "was silent for 0.1 s" in ended.err


def test_the_tables_have_every_setting_of_the_runtime() -> None:
    """None can be set in a program that cannot be set in a file, by an option's name or by its own."""
    elsewhere = {
        "storage.path": "store",
        "tools.fetch": "tools.builtins",
        "serve.token": "serve.token_file",
        **{f"limits.turn.{field}": f"limits.turn.{name}" for name, field in BUDGET.items()},
    }
    objects = {"limits.turn", "serve.jwt", "serve.runtime", "storage.holder", "tools.mcp_servers"}
    classes = {each.table: each.cls for each in SETTINGS.values() if each.option is None}
    for table, cls in classes.items():
        for field in attrs.fields(cls):
            name = f"{table}.{field.name}"
            assert name in objects or elsewhere.get(name, name) in SETTINGS


def test_the_bounds_of_a_file_hold(cli: Cli) -> None:
    """A turn ends at the file's number of steps, and a call that fails is not tried again where the file says so."""
    model = cli.script({"tool_calls": [{"name": "nothing"}]})
    by_default(cli.folder, "[limits.turn]\nmax_steps = 2\n")
    ended = cli.run("run", "x", "-v", "-m", model)
    assert (ended.code, ended.err.count(" turn_started ")) == (2, 2)
    assert ended.err.endswith("[BUDGET_EXHAUSTED]\n")
    down = cli.script({"error": {"message": "down", "retryable": True}}, name="down.json")
    (cli.folder / "retry.toml").write_text("[retry]\nmax_attempts = 3\ninitial_delay = '1ms'\n")
    ended = cli.run("run", "x", "-v", "-m", down, "--config", "retry.toml")
    assert (ended.code, ended.err.count(" retrying ")) == (1, 2)
    (cli.folder / "retry.toml").write_text("[retry]\nmax_attempts = 1\n")
    ended = cli.run("run", "x", "-v", "-m", down, "--config", "retry.toml")
    assert (ended.code, ended.err.count(" retrying ")) == (1, 0)


def test_the_file_of_the_page(folder: Path) -> None:
    """The example in the documentation is a good file, and its table names every setting of compaction."""
    page = PAGE.read_text(encoding="utf-8")
    by_default(folder, page.partition("```toml\n")[2].partition("```")[0])
    assert parse().config.compaction == CompactionConfig(60_000)
    assert all(f"| `{name}` |" in page for name in COMPACTION_FIELDS)


def not_there(_folder: Path) -> None:
    """Leave it away."""


def a_folder(folder: Path) -> None:
    """Put a folder in its place."""
    (folder / "mine.toml").mkdir()


def no_text(folder: Path) -> None:
    """Fill it with bytes that are no UTF-8."""
    (folder / "mine.toml").write_bytes(b"model = 'caf\xe9'")


@pytest.mark.parametrize("prepare", [not_there, a_folder, no_text])
def test_a_named_file_has_to_be_readable(folder: Path, prepare: Any) -> None:
    """A file that was named and cannot be read is an error, not an empty file."""
    prepare(folder)
    with pytest.raises(InvalidParamsError, match=r"^\$\.config: mine\.toml: .") as caught:
        parse("--config", "mine.toml")
    assert caught.value.path == "$.config"


def test_the_limits_of_tenants(tmp_path: Path) -> None:
    """Each table is a tenant, whose limits the runtime gets; a bad one is named by its path."""
    path = tmp_path / "config.toml"
    path.write_text("[tenants.acme]\nsessions = 5\nstored_bytes = 6\n[tenants.default]\nturns_per_minute = 7")
    limits = {"acme": TenantLimits(sessions=5, stored_bytes=6), "default": TenantLimits(turns_per_minute=7)}
    assert config_of(parse("--config", str(path)), None).tenants == limits
    for bad, where in (
        ("[tenants.acme]\nsessions = 0", "$.config.tenants.acme.sessions"),
        ("[tenants.acme]\nmemory_texts = 1e3", "$.config.tenants.acme.memory_texts"),
        ("[tenants.acme]\nrunning_turns = 9_223_372_036_854_775_808", "$.config.tenants.acme.running_turns"),
        ("[tenants.acme]\nmax_sessions = 1", "$.config.tenants.acme"),
        ("[tenants.'a b']\nsessions = 1", "$.config.tenants"),
        ("[tenants]\nacme = 1", "$.config.tenants.acme"),
    ):
        path.write_text(bad)
        with pytest.raises(InvalidParamsError) as caught:
            read_config(path)
        assert caught.value.path in (where, f"{where}.max_sessions")
