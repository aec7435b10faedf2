"""What reads a conversation for a test: the recorder of its events, and the text that is the same in each run."""

from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.runtime import new_session
from warren import Config, File, open_supervisor
from warren.events import RunCompleted, TextDelta, ToolCallRequested
from warren.testing import (
    RecordedCall,
    Recorder,
    Script,
    ScriptedCall,
    ScriptedModel,
    ScriptedStep,
    call,
    say,
    snapshot,
)
from warren.transport.testing.snapshot import VARIABLE


@warren.tool
async def dig(where: str, deep: int = 1) -> str:
    """Dig a hole."""
    if where == "nowhere":
        raise ValueError("there is no such place")
    return f"a hole {where},\n{deep} deep, at 2031-05-04T11:12:13.5Z by 0192f1c4-0000-7000-8000-00000000000{deep}"


def model() -> ScriptedModel:
    """Return a model that digs twice, and the second time in vain."""
    asks = [say("Let me dig.", reasoning="hm"), call("dig", where="here", deep=2), call("dig", where="nowhere")]
    return ScriptedModel([asks, say("One hole.", data={"holes": 1})])


async def dug(recorder: Recorder, **options: Any) -> str:
    """Run the turn; return the snapshot, after a second one was held against the options."""
    schema = {"type": "object", "properties": {"holes": {"type": "integer"}}}
    async with open_supervisor(Config(model="mine"), tools=[dig], providers={"mine": model()}, environ={}) as service:
        session = await new_session(service, system_prompt="You dig.")
        files = [File(b"text", name="plan.txt")]
        await service.start_turn(session, "Dig.\n\nTwice.", attachments=files, output_schema=schema, on_event=recorder)
        text = await snapshot(service, session)
        assert await snapshot(service, session, **options) == text
    return text


async def test_a_recorder() -> None:
    """It has the events, those of one class, and the calls with their results."""
    recorder = Recorder()
    await dug(recorder)
    assert [type(each) for each in recorder.events][-1] is RunCompleted
    assert "".join(each.delta for each in recorder.only(TextDelta)) == "Let me dig.One hole."
    assert len(recorder.only(ToolCallRequested)) == 2
    first, second = recorder.calls
    assert (first.name, first.args, first.is_error) == ("dig", {"where": "here", "deep": 2}, False)
    assert (first.result or "").startswith("a hole here")
    assert second == RecordedCall("call-0-1", "dig", {"where": "nowhere"}, "ValueError: there is no such place", True)


async def test_a_recorder_has_calls_that_never_ran() -> None:
    """Such a call has the text that the model got in place of a result."""
    recorder, unknown = Recorder(), ScriptedModel([call("fly"), say("No.")])
    async with open_supervisor(Config(model="mine"), providers={"mine": unknown}, environ={}) as service:
        await service.create_session("Fly.", on_event=recorder)
    (only,) = recorder.calls
    assert only.is_error
    assert "fly" in (only.result or "")


SHOWN = """\
system: You dig.
user:
  Dig.

  Twice.
  [text plan.txt]
assistant:
  reasoning: hm
  Let me dig.
  <call 1> dig {"deep":2,"where":"here"}
  <call 2> dig {"where":"nowhere"}
tools:
  <call 1>: a hole here,
  2 deep, at <time> by <id 1>
  <call 2> failed: ValueError: there is no such place
assistant:
  One hole.
  data: {"holes":1}
"""


async def test_a_snapshot() -> None:
    """It is the conversation, with names for ids and times, and the same in the next run."""
    assert await dug(Recorder()) == SHOWN
    assert await dug(Recorder()) == SHOWN


async def test_a_snapshot_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable writes the file; without it the file has to be there and to fit, and the difference is shown."""
    file = tmp_path / "dig.txt"
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(AssertionError, match=r"there is no snapshot .*dig\.txt: set WARREN_SNAPSHOT=update"):
        await dug(Recorder(), file=file)
    monkeypatch.setenv(VARIABLE, "update")
    await dug(Recorder(), file=file)
    assert file.read_text(encoding="utf-8") == SHOWN
    monkeypatch.delenv(VARIABLE)
    await dug(Recorder(), file=str(file))
    file.write_text(SHOWN.replace("Let me dig.", "Let me see."), encoding="utf-8")
    with pytest.raises(
        AssertionError, match=r"(?s)WARREN_SNAPSHOT=update to write it:.*\n-  Let me see\.\n\+  Let me dig\."
    ):
        await dug(Recorder(), file=file)


async def test_a_snapshot_of_bad_arguments_and_a_cut_answer() -> None:
    """Arguments that are no JSON are shown as they came, and a reason to stop that is not the usual one."""
    bad = ScriptedStep(tool_calls=(ScriptedCall("dig", invalid_args='{"where'),))
    script = Script((bad, ScriptedStep("Half an", stop_reason="max_tokens")))
    providers = {"mine": ScriptedModel(script)}
    async with open_supervisor(Config(model="mine"), tools=[dig], providers=providers, environ={}) as service:
        text = await snapshot(service, (await service.create_session("Dig.")).session_id)
    assert 'assistant: <call 1> dig {"where\n' in text
    assert "assistant:\n  Half an\n  stopped: max_tokens\n" in text
