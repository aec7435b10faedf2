"""What the servers and the stores of a run have seen, with the checks that need no more than that."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import trio

from warren.base.errors import WarrenError
from warren.conversation import codec
from warren.conversation.delegation import Delegation
from warren.conversation.inputs import Input
from warren.conversation.messages import Message, ToolResultsMessage
from warren.conversation.open_turn import OpenTurn
from warren.models.tools import ToolContext
from warren.settings.config import Limits
from warren.storage.operations import (
    Archive,
    Claimed,
    Commit,
    Delegate,
    Delete,
    EndInputs,
    Enqueue,
    Operation,
    Sent,
    StoreAnswer,
)

RESUMPTIONS: Final = Limits().resumptions
"""The deaths of processes that a turn survives."""
AGAIN: Final = "~"
"""Stands behind the id of a call that a model has asked for before, and before the number of times."""
MARKED: Final = re.compile(r"\[\w+ (s\d+\.[\d.]+)")
"""The beginning of a mark, with the name of its text."""
RESULT: Final = re.compile(
    r"The call (\S+) of the tool \w+, which ran in the background, has (?:ended|failed):\n(.*)", re.DOTALL
)
"""The input with the result of a call in the background: the id of the call, and the result."""


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
        results: the results of calls that were stored before their turn went on, by session and id.
        writers: the process that writes a session under an epoch.
        compacted: the sessions whose models may have forgotten results.
        tenants: the tenant of each session.
        answers: how often the model was asked at each place of a script.
        ends: the numbers of messages that each session had between turns.
        tokens: the completion token that each call has got last, by session and id.
        handed: the sessions and ids of the calls that are stored as those that wait for a result from outside.
        entered: the sessions and ids of the calls in the background whose results are stored as inputs.
        asked: the calls that each request of a client has run, with the name of the request.
        unsure: the sessions of which a commit was cut off, so that nobody knows whether it is there.
        worn: the turns that had taken more processes down than a turn may, by session and number of the first event,
            each with the number of processes: they are to be ended, and no others.
        children: the child sessions that were made, with their places.
        over: the sessions that were archived or deleted.
        deleted: those of them that were deleted.
        told: for each child session the notices of its end that were put on their way to its parent.
        cancelled: the sessions that were told that nobody waits for them any more.
        fired: the times in microseconds since 1970 of the runs whose prompts were stored, by schedule.
        dues: the times before which no turn takes some prompts, by name, in seconds since 1970.
        first_asked: the newest time that the wall clock had had when a model was asked about a prompt first, by name.
    """

    wrong: list[str] = attrs.field(factory=list)
    diary: list[str] = attrs.field(factory=list)
    runs: list[Run] = attrs.field(factory=list)
    kept: set[tuple[str, str]] = attrs.field(factory=set)
    results: dict[tuple[str, str], str] = attrs.field(factory=dict)
    writers: dict[tuple[str, int], str] = attrs.field(factory=dict)
    compacted: set[str] = attrs.field(factory=set)
    tenants: dict[str, str] = attrs.field(factory=dict)
    answers: Counter[tuple[str | None, int]] = attrs.field(factory=Counter)
    ends: dict[str, set[int]] = attrs.field(factory=dict)
    unsure: set[str] = attrs.field(factory=set)
    worn: dict[tuple[str, int], int] = attrs.field(factory=dict)
    tokens: dict[tuple[str, str], str] = attrs.field(factory=dict)
    handed: set[tuple[str, str]] = attrs.field(factory=set)
    entered: set[tuple[str, str]] = attrs.field(factory=set)
    asked: set[tuple[str, str]] = attrs.field(factory=set)
    children: dict[str, Delegation] = attrs.field(factory=dict)
    told: dict[str, list[Input]] = attrs.field(factory=dict)
    over: set[str] = attrs.field(factory=set)
    deleted: set[str] = attrs.field(factory=set)
    cancelled: set[str] = attrs.field(factory=set)
    fired: dict[str, set[int]] = attrs.field(factory=dict)
    dues: dict[str | None, float] = attrs.field(factory=dict)
    first_asked: dict[str | None, float] = attrs.field(factory=dict)
    _newest: dict[str, int] = attrs.field(factory=dict)
    _turns: dict[str, tuple[str, OpenTurn]] = attrs.field(factory=dict)
    _claimed: dict[str, set[str]] = attrs.field(factory=dict)  # who has had a session since its newest commit

    def note(self, text: str) -> None:
        """Add a line to the diary."""
        self.diary.append(f"{trio.current_time():.3f} {text}")

    def blame(self, problem: str) -> None:
        """Note what should not be."""
        self.wrong.append(f"{trio.current_time():.3f} {problem}")

    def run(self, call: ToolContext, node: str, *, may_repeat: bool, background: bool = False) -> None:
        """Note that a tool begins.

        No call runs again whose result is stored, and none at all if its tool may not repeat it: else under its key.
        The result of a call in the background is the input that it makes: what its turn has is stored before it runs.
        """
        session_id, call_id = call.session_id, call.call_id
        first, _, again = call_id.partition(AGAIN)
        kept = (session_id, call_id) in (self.entered if background else self.kept)
        kept = kept or bool(again and session_id not in self.compacted and (session_id, first) in self.kept)
        for each in self.runs:
            if (each.session_id, each.call_id) == (session_id, call_id):
                if not may_repeat:
                    self.blame(f"{node} ran {call_id} a second time")
                if each.key != call.key:
                    self.blame(f"{node} ran {call_id} under another key than before")
        self.runs.append(Run(session_id, call_id, call.key, node, kept))
        self.note(f"{node} runs {call.name} for {call_id}")
        if kept:
            self.blame(f"{node} ran {call_id} again, whose result is stored")
        if (session_id, call_id) in self.handed:
            self.blame(f"{node} ran {call_id} again, which is stored as one that waits for its result")

    def run_by_client(self, request: str, session_id: str, call_id: str) -> None:
        """Note that a client begins to run a tool: no call twice in one request, and none whose result is stored.

        A request that has failed has left its call without a result, and the next one is asked for it again.
        """
        self.note(f"{request} runs {call_id}")
        if (request, call_id) in self.asked:
            self.blame(f"{request} ran {call_id} a second time")
        if (session_id, call_id) in self.kept:
            self.blame(f"{request} was asked for {call_id}, whose result is stored")
        self.asked.add((request, call_id))

    def request(self, session_id: str | None, tenants: Iterable[str]) -> None:
        """Note a request to the model: the texts of a session are of its tenant alone."""
        own = self.tenants.get(session_id or "")
        for tenant in tenants:
            if own is not None and tenant != own:
                self.blame(f"a model read a text of {tenant} in a session of {own}")

    def wrote(self, node: str, operations: Sequence[Operation[Any]], outcomes: Sequence[Any]) -> None:
        """Note a group that a process has committed: one process at a time writes a session, and epochs never fall."""
        for each, outcome in zip(operations, outcomes, strict=True):
            if isinstance(outcome, WarrenError):
                continue
            self._wrote(node, each)
            if isinstance(outcome, Claimed):
                self._claimed.setdefault(each.session_id, set()).add(node)

    def _wrote(self, node: str, change: Operation[Any]) -> None:
        if isinstance(change, Commit | EndInputs | Archive | Delete):
            self._told(change)
        match change:
            case Commit():
                self._committed(node, change)
                waits = [wait.call_id for wait in change.waits if wait.reason == "outside"]
                self.handed.update((change.session_id, call_id) for call_id in waits)
            case StoreAnswer():
                data = change.wait.data or {}
                if change.wait.reason == "background" and (change.wait.result is not None or data.get("later")):
                    self.handed.add((change.session_id, data["call_id"]))
            case Enqueue():
                self._enqueued(change)
            case Delegate():
                place = change.record.delegation
                assert place is not None
                self.children[change.session_id] = place
                if (tenant := self.tenants.get(place.session_id)) is not None:
                    self.tenants[change.session_id] = tenant

    def _told(self, change: Commit | EndInputs | Archive | Delete) -> None:
        """Note what a change tells others: nothing if it is of inputs of an ended session, or its second end."""
        session_id, ended = change.session_id, self.deleted if isinstance(change, Delete) else self.over
        if isinstance(change, Commit) or session_id not in ended:
            for sent in change.sends:
                self._sent(sent)
        if isinstance(change, Archive | Delete):
            self.over.add(session_id)
        if isinstance(change, Delete):
            self.deleted.add(session_id)

    def _enqueued(self, change: Enqueue) -> None:
        said = change.input
        of, _, run = (said.key or "").partition("/")
        if of == "schedule":
            schedule_id, _, due = run.partition("/")
            self.fired.setdefault(schedule_id, set()).add(int(due))
        if (found := RESULT.match(said.text)) is not None:
            self.entered.add((change.session_id, found[1]))
        if said.not_before is not None and (mark := MARKED.search(said.text)) is not None:
            self.dues.setdefault(mark[1], said.not_before.timestamp())

    def _sent(self, sent: Sent) -> None:
        if sent.input.kind == "cancel":
            self.cancelled.add(sent.session_id)
        elif sent.input.end is not None:
            self.told.setdefault(sent.input.end.session_id, []).append(sent.input)

    def _committed(self, node: str, commit: Commit) -> None:
        session_id, epoch = commit.session_id, commit.lease.epoch
        if self.writers.setdefault((session_id, epoch), node) != node:
            self.blame(f"{node} wrote a session under the epoch {epoch} of {self.writers[session_id, epoch]}")
        if epoch < self._newest.setdefault(session_id, epoch):
            self.blame(f"{node} wrote a session under the epoch {epoch}, after {self._newest[session_id]}")
        self._newest[session_id] = max(epoch, self._newest[session_id])
        self._count_deaths(node, commit)
        if commit.record.turn is None and not commit.record.turn_open:
            self.ends.setdefault(session_id, set()).add(commit.record.message_count)
        if commit.compaction is not None:
            self.compacted.add(session_id)
        self.kept.update((session_id, each.call_id) for each in commit.calls if each.result is not None)
        for each in commit.calls:
            if each.result is not None:
                self.results[session_id, each.call_id] = each.result.content
        for row in commit.messages:
            self.kept.update((session_id, call_id) for call_id in results_in(codec.decode_message(row.body)))

    def _count_deaths(self, node: str, commit: Commit) -> None:
        """Note how often processes have ended during a turn: each process that goes on with it counts that.

        One that goes on with its own turn counts no end, unless another process has had the session meanwhile: if that
        one has stored nothing, nothing in the store tells the end of the one from the end of the other.
        """
        session_id, turn = commit.session_id, commit.record.turn
        before, claimed = self._turns.pop(session_id, None), self._claimed.pop(session_id, set())
        if turn is not None:
            self._turns[session_id] = node, turn
        if before is None:
            return
        earlier, kept = before
        deaths = kept.deaths + (not kept.parked and earlier != node)
        most = kept.deaths + (not kept.parked and (earlier != node or bool(claimed - {node})))
        if turn is None:
            if most > RESUMPTIONS:
                self.worn[session_id, kept.first_seq] = most
        elif kept.began == turn.began and session_id not in self.unsure:
            # If neither differs, it does not go on: it stores something else.
            if (kept.resumed, kept.parked) == (turn.resumed, turn.parked):
                self._turns[session_id], self._claimed[session_id] = (earlier, turn), claimed
            elif turn.deaths < deaths:
                self.blame(f"{node} goes on with a turn, and does not count the end of {earlier}")
            elif turn.deaths > most:
                self.blame(f"{node} counts {turn.deaths} ends of processes in a turn that has seen {most}")
            elif deaths > RESUMPTIONS:
                self.blame(f"{node} goes on with a turn that has taken {deaths} processes down")


def results_in(message: Message) -> Sequence[str]:
    """Return the ids of the calls whose results a message has."""
    return [each.tool_use_id for each in message.results] if isinstance(message, ToolResultsMessage) else []
