"""Answers that are recorded from a real server are played again without it."""

import json

from tests.transport.cli.model_server import KEY, Behaviour, configured, serving
from tests.transport.cli.process import Cli


def test_a_recorded_answer_is_played_without_the_server(cli: Cli) -> None:
    """The command works as without a recorder; the file has no key, and the server is not needed any more."""
    with serving(Behaviour()) as url:
        configured(cli, mine=url)
        env = {"THE_KEY": KEY}
        options = ["-m", "mine:small-1", "--config", "servers.toml"]
        ended = cli.run("record", "talk.json", "--", "run", "really?", *options, env=env)
        assert (ended.code, ended.out) == (0, "yes\n")
        again = cli.run("run", "really?", *options, "--record", "talk.json", env=env)
        assert again.code == 2
        assert "record: talk.json: exists already" in again.err.replace(str(cli.folder) + "/", "")
    written = (cli.folder / "talk.json").read_text(encoding="utf-8")
    assert json.loads(written)["steps"][0]["chunks"] == ["yes"]
    assert KEY not in written
    assert "Bearer" not in written
    assert cli.run("run", "really?", "-m", "scripted:talk.json").out == "yes\n"
