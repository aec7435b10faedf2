"""Notices a model that makes the same tool calls again and again, and gets the same results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from warren.base.errors import BudgetExhaustedError
from warren.base.values import define
from warren.conversation.messages import ToolResult, ToolUseBlock
from warren.models.tools import Tool

REPEATED_CALLS: Final = "repeated_calls"
_NOTE: Final = "[You have made this call {} times, and its result is the same. Do something else, or answer.]"
_BEGINNING, _END = _NOTE.split("{}")


@define(eq=False)
class Repeats:
    """Counts how often each call of a turn was made with one result, while the turn learns nothing new.

    A call whose arguments or result were not seen before in the turn begins the count of all calls anew: what was tried
    before may have another meaning now. Calls of one answer that are the same count once.

    Attributes:
        note: the count at which the model is told.
        most: the count at which the turn ends.
    """

    note: int
    most: int
    _run: int = 0  # the number of times that something new was seen
    _seen: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # by call and result: the run, and the count in it

    def told(
        self, calls: Iterable[ToolUseBlock], results: Sequence[ToolResult], tools: Mapping[str, Tool]
    ) -> tuple[tuple[ToolResult, ...], BudgetExhaustedError | None]:
        """Count the calls of an answer. Return the results for the model, and the error if the turn is to end."""
        keys = [_key(call, result, tools) for call, result in zip(calls, results, strict=True)]
        seen = self._seen
        if not all(key is None or key in seen for key in keys):
            self._run += 1
        counts = {key: self._count(key) for key in keys if key is not None}
        seen.update((key, (self._run, count)) for key, count in counts.items())
        if not counts or max(counts.values()) < min(self.note, self.most):
            return tuple(results), None
        noted = [self._noted(result, counts.get(key or 0, 0)) for key, result in zip(keys, results, strict=True)]
        worst = max(counts.values())
        return tuple(noted), self._ended(worst) if worst >= self.most else None

    def _count(self, key: int) -> int:
        run, count = self._seen.get(key, (0, 0))
        return count + 1 if run == self._run else 1

    def _noted(self, result: ToolResult, count: int) -> ToolResult:
        if count != self.note:
            return result
        note = _NOTE.format(count)
        return attrs.evolve(result, content=f"{result.content}\n\n{note}" if result.content else note)

    def _ended(self, count: int) -> BudgetExhaustedError:
        problem = (
            f"the model has made the same tool call {count} times and got the same result, the bound of "
            "limits.repeated_calls; a tool that is meant to be polled declares polls=True"
        )
        details = {"budget_type": REPEATED_CALLS, "used": count, "limit": self.most}
        return BudgetExhaustedError(problem, cause="repeated_calls", details=details)


def _key(call: ToolUseBlock, result: ToolResult, tools: Mapping[str, Tool]) -> int | None:
    """Return what a call and its result are known by; None for a tool that is meant to be polled."""
    tool = tools.get(call.name)
    if tool is not None and tool.polls:
        return None
    files = tuple([file.sha256 for file in result.attachments])
    args = json.dumps(call.args, sort_keys=True, default=str)  # a model may change their order
    content = result.content
    if content.endswith(_END):  # noted by the process that ran the turn before this one
        content = content.rpartition(_BEGINNING)[0].removesuffix("\n\n")
    return hash((call.name, args, call.invalid_args, content, files))
