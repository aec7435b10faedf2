"""What happens in a turn, as the lines of a log: one for each kind of event that a program can meet."""

from typing import assert_never

import trio

import warren
from warren import Config, Envelope, Event, open_supervisor
from warren import events as on
from warren.testing import ScriptedModel, call, fail, say

BAD: tuple[on.FailureCause, ...] = ("store_error", "crash")
OF_PEOPLE: tuple[on.InputKind, ...] = ("queue", "steer")
WATCHED: tuple[on.BudgetType, ...] = ("cost", "tokens")
HARMLESS: tuple[on.RepairAction, ...] = ("shortened", "replaced")


def line(event: Event) -> str | None:  # noqa: C901, PLR0911, PLR0912 - one line for each kind
    """Return the line of an event; None for one that a log leaves out."""
    match event:
        case on.RunStarted(prompt=prompt):
            return f"the turn begins: {prompt}"
        case on.TurnStarted(turn_number=number):
            return f"step {number}"
        case on.TextDelta() | on.ReasoningDelta():
            return None  # the whole text follows
        case on.TextComplete(content=content):
            return f"the model says: {content}"
        case on.FilesComplete(attachments=files):
            return f"the model has made {len(files)} files"
        case on.TurnCompleted(usage=usage, stop_reason=reason):
            return f"{usage.input_tokens} tokens read, {usage.output_tokens} written ({reason})"
        case on.ToolCallRequested(name=name, args=args):
            return f"the model wants {name}({args})"
        case on.ToolApprovalRequested(name=name, timeout_ms=ms):
            return f"{name} waits for a person, {ms / 1000:g} s at most"
        case on.ToolApprovalResolved(name=name, decision=decision):
            return f"{name}: {decision}"
        case on.ToolExecutionStarted(name=name):
            return f"{name} runs"
        case on.ToolExecutionCompleted(name=name, is_error=is_error, duration_ms=ms):
            return f"{name} {'fails' if is_error else 'ends'} after {ms / 1000:.0f} s"
        case on.ToolExecutionTimedOut(name=name):
            return f"{name} takes too long"
        case on.ToolResultReceived():
            return None  # it says no more than `ToolExecutionCompleted`, but for calls that have waited
        case on.InputTaken(kind=kind, content=content, source=source):
            return f"{'a person' if kind in OF_PEOPLE else source or 'the program'} adds: {content}"
        case on.Retrying(attempt=attempt, max_attempts=most, error=error):
            return f"attempt {attempt} of {most} follows: {error}"
        case on.RequestRepaired(action=action, what=what, why=why):
            return None if action in HARMLESS else f"the request was refused ({why}): {what} {action}"
        case on.ModelSwitched(from_model=old, to_model=new):
            return f"{new} takes over from {old}"
        case on.BudgetWarning(budget_type=kind, percent=percent):
            return f"{percent:.0f} % of the budget of {kind} is used" if kind in WATCHED else None
        case on.CompactionStarted(message_count=count):
            return f"{count} messages are summarised"
        case on.CompactionCompleted(messages_after=count):
            return f"{count} messages are left"
        case on.CompactionFailed(reason=reason):
            return f"nothing was summarised: {reason}"
        case on.ExtractionCompleted(attempts=attempts):
            return f"the answer is data, at attempt {attempts}"
        case on.ExtractionFailed(error=error):
            return f"the answer is no data: {error}"
        case on.RunCompleted(result=result):
            return f"the turn ends: {result}"
        case on.RunFailed(cause=cause, error=error):
            return f"{'ALARM: ' if cause in BAD else ''}the turn fails ({cause}): {error}"
        case on.TurnResumed(kept_seq=seq):
            return f"another process goes on; deltas behind {seq} do not count"
        case on.SessionMoved(first_lost=first, last_lost=last):
            return f"the session moved; the events {first} to {last} are lost"
        case on.StreamTruncated(dropped=dropped):
            return f"{dropped} events came too fast to be read"
        case on.UnknownEvent(type=kind):
            return f"{kind}, which this version does not know"
        case _:
            assert_never(event)  # a type checker tells of a kind that is missing above


@warren.tool
async def stock(article: str) -> int:
    """Look up how many pieces of an article are left."""
    return 5 if article == "carrots" else 0


def show(envelope: Envelope) -> None:
    """Print the line of an event with its number."""
    if isinstance(envelope.event, on.DELTAS):
        return
    text = line(envelope.event)
    if text is not None:
        print(f"{envelope.seq:3} {text}")
    if isinstance(envelope.event, on.TERMINAL):
        print("    the turn has no more events")


async def main() -> None:
    """Run a turn on a model that fails once, calls a tool and answers."""
    model = ScriptedModel(
        [[fail("overloaded", retryable=True, times=1), call("stock", article="carrots")], say("Five are left.")]
    )
    async with open_supervisor(Config(model="shop"), tools=[stock], providers={"shop": model}) as service:
        await service.create_session("Are there carrots?", on_event=show)


if __name__ == "__main__":
    trio.run(main)
