"""What the servers and the stores of a run have seen, with the checks that need no more than that."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import trio

from warren.base.errors import WarrenError
from warren.conversation import codec
from warren.conversation.messages import Message, ToolResultsMessage
from warren.models.tools import ToolCall
from warren.storage.operations import Commit, Operation

AGAIN: Final = "~"
"""Stands behind the id of a call that a model has asked for before, and before the number of times."""


@attrs.frozen
class Run:
    """One run of a tool.

    Attributes:
        session_id: the session.
        call_id: the id of the call, which no other call of the session has.
        key: the idempotency key of the call.
        node: the name of the process.
        kept: whether the store had the result of the call already.
    """

    session_id: str
    call_id: str
    key: str
    node: str
    kept: bool


@attrs.define(eq=False)
class Record:
    """What the model, the tools and the stores of all processes have seen.

    Attributes:
        wrong: what should not be.
        diary: what happened, for people. It is the same for each run of a plan.
        runs: the runs of tools.
        kept: the sessions and ids of the calls whose results are stored.
        writers: the process that writes a session under an epoch.
        compacted: the sessions whose models may have forgotten results.
        tenants: the tenant of each session.
        answers: how often the model was asked at each place of a script.
    """

    wrong: list[str] = attrs.field(factory=list)
    diary: list[str] = attrs.field(factory=list)
    runs: list[Run] = attrs.field(factory=list)
    kept: set[tuple[str, str]] = attrs.field(factory=set)
    writers: dict[tuple[str, int], str] = attrs.field(factory=dict)
    compacted: set[str] = attrs.field(factory=set)
    tenants: dict[str, str] = attrs.field(factory=dict)
    answers: Counter[tuple[str | None, int]] = attrs.field(factory=Counter)
    _newest: dict[str, int] = attrs.field(factory=dict)

    def note(self, text: str) -> None:
        """Add a line to the diary."""
        self.diary.append(f"{trio.current_time():.3f} {text}")

    def blame(self, problem: str) -> None:
        """Note what should not be."""
        self.wrong.append(f"{trio.current_time():.3f} {problem}")

    def run(self, call: ToolCall, node: str) -> None:
        """Note that a tool begins: no call whose result is stored runs again."""
        session_id, call_id = call.session_id, call.call_id
        kept = (session_id, call_id) in self.kept or (
            session_id not in self.compacted and (session_id, call_id.partition(AGAIN)[0]) in self.kept
        )
        self.runs.append(Run(session_id, call_id, call.key, node, kept))
        self.note(f"{node} runs {call.name} for {call_id}")
        if kept:
            self.blame(f"{node} ran {call_id} again, whose result is stored")

    def request(self, session_id: str | None, tenants: Iterable[str]) -> None:
        """Note a request to the model: the texts of a session are of its tenant alone."""
        own = self.tenants.get(session_id or "")
        for tenant in tenants:
            if own is not None and tenant != own:
                self.blame(f"a model read a text of {tenant} in a session of {own}")

    def wrote(self, node: str, operations: Sequence[Operation[Any]], outcomes: Sequence[Any]) -> None:
        """Note a group that a process has committed: one process at a time writes a session, and epochs never fall."""
        for each, outcome in zip(operations, outcomes, strict=True):
            if isinstance(each, Commit) and not isinstance(outcome, WarrenError):
                self._committed(node, each)

    def _committed(self, node: str, commit: Commit) -> None:
        session_id, epoch = commit.session_id, commit.lease.epoch
        if self.writers.setdefault((session_id, epoch), node) != node:
            self.blame(f"{node} wrote a session under the epoch {epoch} of {self.writers[session_id, epoch]}")
        if epoch < self._newest.setdefault(session_id, epoch):
            self.blame(f"{node} wrote a session under the epoch {epoch}, after {self._newest[session_id]}")
        self._newest[session_id] = max(epoch, self._newest[session_id])
        if commit.compaction is not None:
            self.compacted.add(session_id)
        self.kept.update((session_id, each.call_id) for each in commit.calls if each.result is not None)
        for row in commit.messages:
            self.kept.update((session_id, call_id) for call_id in results_in(codec.decode_message(row.body)))


def results_in(message: Message) -> Sequence[str]:
    """Return the ids of the calls whose results a message has."""
    return [each.tool_use_id for each in message.results] if isinstance(message, ToolResultsMessage) else []
