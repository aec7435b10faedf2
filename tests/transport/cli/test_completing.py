"""`warren complete`: the result of a tool call from the shell, while no process runs its turn."""

from functools import partial

import pytest
import trio

from tests.transport.cli.process import Cli
from warren.models.tools import ToolOutput, current_call, tool
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep

STEPS = (ScriptedStep(tool_calls=(ScriptedCall("build", {}),)), ScriptedStep("It builds."))


@pytest.mark.parametrize("is_json", [True, False])
async def test_a_result_from_the_shell(cli: Cli, *, is_json: bool) -> None:
    """It is stored, and the next process of the program goes on with it."""
    tokens = list[str]()

    @tool
    async def build() -> ToolOutput:
        """Build."""
        await trio.lowlevel.checkpoint()
        tokens.append(current_call().token(expires=600))
        return ToolOutput.later(tokens[0])

    config = Config(store=StoreConfig(cli.folder / "kept"), provider="builder", model="scripted")
    model = {"builder": ScriptedModel(STEPS)}
    opened = partial(open_supervisor, config, tools=[build], providers=model, environ={})
    async with opened() as service, trio.open_nursery() as nursery:
        nursery.start_soon(partial(service.create_session, "go", idempotency_key="k"))
        while not (await service.list(turn_state="waiting")).sessions:  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    words = ("--json", '{"state": "passed"}') if is_json else ("--error", "it does not build")
    for _ in range(2):
        ended = cli.run("complete", tokens[0], *words, "--store", "kept")
        assert ended.code == 0, ended.err
        assert ended.out.startswith("completed a call of ")
    ended = cli.run("complete", tokens[0], "--json", "{", "--store", "kept")
    assert "result: is not JSON" in ended.err
    ended = cli.run("complete", tokens[0], "another", "--store", "kept")
    assert ended.code != 0
    assert "token: tool call 'call-0-0' has got another result" in ended.err
    async with opened() as service:
        result = await service.create_session("go", idempotency_key="k")
        found = (await service.history(result.session_id)).messages
    (told,) = [each for entry in found for each in getattr(entry.message, "results", ())]
    expected = ('{"state":"passed"}', False) if is_json else ("it does not build", True)
    assert (result.text, told.content, told.is_error) == ("It builds.", *expected)


def test_what_is_no_token(cli: Cli) -> None:
    """The message says so before a result is read from a pipe and before a store is looked for."""
    ended = cli.run("complete", "abc", "--store", "none")
    assert ended.code != 0
    assert "token: is no completion token" in ended.err
