"""`warren models --live` and `warren doctor models`, against real servers that answer, refuse and are not there."""

import tomllib

import pytest

from tests.transport.cli.model_server import KEY, Behaviour, configured, serving
from tests.transport.cli.process import Cli
from tests.transport.providers.identity import serving_identity


def test_the_models_of_a_server(cli: Cli) -> None:
    """Its models are listed, with what the catalog knows of them; a provider that does not answer is an error."""
    with serving(Behaviour()) as url:
        configured(cli, mine=url)
        ended = cli.run("models", "--live", "--config", "servers.toml", env={"THE_KEY": KEY})
        assert ended.code == 0
        rows = [line.split("\t")[:3] for line in ended.out.splitlines()]
        assert rows == [["small-1", "mine", "no"], ["large-1", "mine", "no"], ["gpt-5.4", "mine", "yes"]]
        ended = cli.run("models", "--live", "--config", "servers.toml", "--output", "json", env={"THE_KEY": "sk-wrong"})
        (listed,) = ended.data["providers"]
        assert (ended.code, listed["provider"]) == (1, "mine")
        assert "refused the key in THE_KEY (401)" in listed["error"]
        assert "sk-wrong" not in ended.out + ended.err
    ended = cli.run("models", "--live")
    assert (ended.code, ended.out) == (1, "")
    assert "no provider has a key" in ended.err


@pytest.mark.parametrize(
    ("behaviour", "key", "args", "expected"),
    [
        (Behaviour(), KEY, [], (None, None)),
        (Behaviour(lists=False), KEY, ["-m", "mine:large-1"], (None, None)),
        (Behaviour(lists=False), KEY, [], ("model", "name one with --model")),
        (Behaviour(), "sk-not-the-key", [], ("key", "refused the key in THE_KEY (401)")),
        (Behaviour(), KEY, ["-m", "mine:smal-1"], ("model", "it has small-1")),
        (Behaviour(status=429), KEY, [], ("quota", "answered 429")),
        (Behaviour(status=402), KEY, [], ("quota", "answered 402")),
        (Behaviour(status=500), KEY, [], ("answer", "answered 500")),
        (Behaviour(status=404, lists=False), KEY, ["-m", "mine:large-1"], ("address", "answered 404")),
        (None, KEY, [], ("address", "cannot be reached")),
    ],
)
def test_the_problem_of_a_server(
    cli: Cli, behaviour: Behaviour | None, key: str, args: list[str], expected: tuple[str | None, str | None]
) -> None:
    """One cheap call tells the setting that is wrong, and the exit code whether anything is."""
    problem, said = expected
    with serving(behaviour or Behaviour()) as url:
        away = url if behaviour is not None else "http://127.0.0.1:9/v1"
        configured(cli, mine=away)
        options = ["--config", "servers.toml", "--output", "json", *args]
        ended = cli.run("doctor", "models", *options, env={"THE_KEY": key})
        (checked,) = ended.data["providers"]
        assert (ended.code, checked.get("problem")) == (0 if problem is None else 1, problem)
        assert said is None or said in checked["message"]
        assert key not in ended.out + ended.err


def test_a_turn_with_tokens_of_entra_id(cli: Cli) -> None:
    """A machine's identity on Azure is enough for a turn; the doctor says in one line that it gives no token."""
    with serving(Behaviour()) as url, serving_identity((KEY, 3600)) as identity:
        (cli.folder / "servers.toml").write_text(f'[providers.azure]\nbase_url = "{url}"\ndialect = "openai-chat"\n')
        common = ["--config", "servers.toml", "-m", "azure:gpt-5.4"]
        ended = cli.run("run", *common, "hello", env=identity.environ)
        assert (ended.code, ended.out.strip()) == (0, "yes")
        identity.answers = [None]
        ended = cli.run("doctor", "models", *common, env=identity.environ)
        assert (ended.code, ended.err) == (1, "")
        assert ended.out.startswith("azure\tgpt-5.4\tkey\tazure: AZURE_OPENAI_API_KEY is not set, and the default")
        assert ended.out.count("\n") == 1
        assert identity.environ["IDENTITY_HEADER"] not in ended.out


def test_all_providers_are_checked(cli: Cli) -> None:
    """Each has a line of its own, also if another one is not there."""
    with serving(Behaviour()) as url:
        configured(cli, mine=url, away="http://127.0.0.1:9/v1")
        ended = cli.run("doctor", "models", "--config", "servers.toml", "-m", "mine:gpt-5.4", env={"THE_KEY": KEY})
        lines = [line.split("\t") for line in ended.out.splitlines() if "\t" in line]
        assert [line[:3] for line in lines] == [["mine", "gpt-5.4", "ok"], ["away", "", "address"]]
        assert ended.code == 1
        ended = cli.run("doctor", "models", "--config", "servers.toml", "-p", "mine", env={"THE_KEY": KEY})
        assert (ended.code, ended.out.count("\t")) == (0, 3)


def test_the_settings_of_a_server(cli: Cli) -> None:
    """The doctor tries what a server takes of the protocol, and its table can be pasted into the configuration."""
    refuses = {
        '"stream_options"': "unknown field: `stream_options`",
        '"image_url"': "image input is not supported",
        '"tools"': "no tools here",
    }
    behaviour = Behaviour(refuses=refuses)
    with serving(behaviour) as url:
        configured(cli, mine=url)
        args = ["doctor", "models", "--config", "servers.toml", "-m", "mine:small-1"]
        ended = cli.run(*args, env={"THE_KEY": KEY})
        rows, _, table = ended.out.partition("\n\n")
        assert (ended.code, rows.split("\t")[2]) == (0, "ok")
        settings = tomllib.loads(table)["providers"]["mine"]
        assert settings == {"base_url": url, "dialect": "openai-chat", "without": ["images", "stream_options"]}
        assert "# tools: mine at" in table
        (cli.folder / "servers.toml").write_text(f'{table}\nkey_env = "THE_KEY"\n', encoding="utf-8")
        before = len(behaviour.got)
        assert cli.run("run", "--config", "servers.toml", "-m", "mine:small-1", "hi", env={"THE_KEY": KEY}).code == 0
        assert len(behaviour.got) == before + 1


def test_a_server_that_never_gives_stop_reasons(cli: Cli) -> None:
    """The doctor finds that out, and with its table the first answer of each process is asked for once."""
    behaviour = Behaviour(streams=b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n')
    with serving(behaviour) as url:
        configured(cli, mine=url)
        ended = cli.run("doctor", "models", "--config", "servers.toml", "-m", "mine:small-1", env={"THE_KEY": KEY})
        rows, _, table = ended.out.partition("\n\n")
        assert (ended.code, rows.split("\t")[2]) == (0, "ok")
        assert tomllib.loads(table)["providers"]["mine"]["without"] == ["finish_reason"]
        (cli.folder / "servers.toml").write_text(f'{table}\nkey_env = "THE_KEY"\n', encoding="utf-8")
        before = len(behaviour.got)
        ended = cli.run("run", "--config", "servers.toml", "-m", "mine:small-1", "hi", env={"THE_KEY": KEY})
        assert (ended.code, ended.out.strip(), len(behaviour.got)) == (0, "yes", before + 1)


def test_a_switch_that_is_unknown(cli: Cli) -> None:
    """The error names the field and the switch."""
    path = cli.folder / "servers.toml"
    path.write_text('[providers.mine]\nbase_url = "http://127.0.0.1:9"\nwithout = ["steam"]\n', encoding="utf-8")
    ended = cli.run("models", "--config", "servers.toml")
    assert ended.code == 2
    assert "providers.mine.without" in ended.err
    assert "'steam'" in ended.err
