"""Faults that are planted in a copy of the package, one at a time, to see that the simulation finds each of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

import warren

SEEDS: Final = 300
"""The seeds within which each fault has to be found."""
ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(warren.__file__).parent


@attrs.frozen
class Planted:
    """A fault.

    Attributes:
        name: its name.
        file: the file that has it, in the package.
        text: the source text, which is there once.
        instead: the text in its place.
        breaks: the promise that it breaks.
        found_by: the check that finds it: a part of what that says.
        soon: whether few seeds are enough.
    """

    name: str
    file: str
    text: str
    instead: str
    breaks: str
    found_by: str
    soon: bool = False


def plant(fault: Planted, package: Path) -> None:
    """Plant a fault in a copy of the package. Raises AssertionError if the source text is not there exactly once."""
    file = package / fault.file
    source = file.read_text()
    times = source.count(fault.text)
    assert times == 1, f"the text of the fault {fault.name!r} is {times} times in {fault.file}: adapt its row"
    file.write_text(source.replace(fault.text, fault.instead))


def sought(fault: Planted, folder: Path, seeds: int = SEEDS) -> tuple[int, str] | None:
    """Return the number of seeds that find a fault in a copy in a folder, and what is wrong then; None if none does."""
    package = folder / "warren"
    shutil.copytree(PACKAGE, package)  # also what links lead to
    plant(fault, package)
    command = [sys.executable, "-m", "tests.simulation.seek", str(folder), fault.found_by, str(seeds)]
    path = os.pathsep.join((str(folder), str(ROOT)))
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    number, _, problem = ended.stdout.partition(" ")
    return (int(number), problem) if number else None


PLANTED: Final[Sequence[Planted]] = (
    Planted(
        "commits have no fence",
        "storage/sqlite/operations.py",
        """{_FENCE.format("column")} AND message_count = column20 AND last_seq = column21""",
        """state <> {DELETED}""",
        "A process that has lost a session writes nothing to it.",
        "under the epoch",
        soon=True,
    ),
    Planted(
        "an answer comes before its commit",
        "actors/session/actor.py",
        """                committed = await conversation.commit(record, terminal, ending, turn.plan.ended, key""",
        """                for each in conversation.inbox._taken.values():
                    for mail in each.askers:
                        mail.answer(ending)
                committed = await conversation.commit(record, terminal, ending, turn.plan.ended, key""",
        "What a caller is told is stored.",
        "one_end",
        soon=True,
    ),
    Planted(
        "open turns are not looked for",
        "storage/sqlite/inbox.py",
        """WHERE turn IS NOT NULL AND wakes IS NULL""",
        """WHERE 0""",
        "A turn whose process has died goes on without a request.",
        "do not come to rest",
        soon=True,
    ),
    Planted(
        "waiting inputs are not looked for",
        "storage/sqlite/inbox.py",
        """WHERE outcome IS NULL AND starts AND not_before IS NULL
            UNION ALL""",
        """WHERE 0
            UNION ALL""",
        "An input begins its turn without a request, also after its process has died.",
        "do not come to rest",
    ),
    Planted(
        "results of calls that were left are not taken",
        "actors/turn/toolbox.py",
        """        if left.result is not None:
            self.results[call.id] = left.result
            return
        if given""",
        """        if given""",
        "A result that is stored is never forgotten.",
        "results_stay",
        soon=True,
    ),
    Planted(
        "states of calls are stored once",
        "storage/sqlite/open_turns.py",
        """DO UPDATE SET call_id = excluded.call_id, state = excluded.state, body = excluded.body""",
        """DO NOTHING""",
        "A result that is stored is never forgotten.",
        "results_stay",
        soon=True,
    ),
    Planted(
        "calls that were left begin anew",
        "actors/session/actor.py",
        """NOTHING_LEFT if kept is None else dict(conversation.calls)""",
        """NOTHING_LEFT""",
        "A call that may have run is reported to the model, unless its tool allows another run.",
        "a second time",
        soon=True,
    ),
    Planted(
        "a stop is the end of a turn",
        "actors/session/actor.py",
        """if stops and self._turn.steps is not None:""",
        """if stops and self._turn.steps is None:""",
        "A key is settled by the end of its turn, and by no stop.",
        "true_end",
        soon=True,
    ),
    Planted(
        "the endings of keys are not stored",
        "storage/sqlite/inbox.py",
        """found = [(number, key, inputs.outcome.decode())""",
        """found = [(number, key, "")""",
        "Who asks under a key is told how its turn has ended.",
        "true_end",
        soon=True,
    ),
    Planted(
        "inputs that are taken wait again",
        "actors/session/inbox.py",
        """**{n: e for n, e in taken.items() if n not in kept}}""",
        """**taken}""",
        "An input is taken once.",
        "nothing_twice",
        soon=True,
    ),
    Planted(
        "the newest input comes first",
        "actors/session/inbox.py",
        """for each in self.waiting.values():
            input_""",
        """for each in reversed(self.waiting.values()):
            input_""",
        "Inputs begin their turns in their order.",
        "queue_in_order",
    ),
    Planted(
        "a step takes the inputs that wait out of the store",
        "actors/session/inbox.py",
        """return InputOutcome(tuple([number for number in self._taken if number not in self._kept]))""",
        """return InputOutcome((*self._taken, *self.waiting))""",
        "An input waits in the store until a turn takes it.",
        "true_end",
    ),
    Planted(
        "a takeover leaves no room for events",
        "storage/sqlite/operations.py",
        """last_seq = last_seq + iif(holder IS NULL AND updated_at > ?3, 0, {SEQ_STRIDE})""",
        """last_seq = last_seq""",
        "No two events of a session have one number, also if the first one was only shown.",
        "events_once",
    ),
    Planted(
        "sessions of all tenants are found",
        "storage/sqlite/queries.py",
        """(query.session_id, query.tenant)).get == 2)""",
        """(query.session_id, query.tenant)).get >= 1)""",
        "A tenant finds its own sessions alone.",
        "found a session of another tenant",
        soon=True,
    ),
    Planted(
        "lists have the sessions of all tenants",
        "storage/sqlite/queries.py",
        """conditions = ["tenant = ?", """,
        """conditions = ["? <> ''", """,
        "A tenant finds its own sessions alone.",
        "met a session of another tenant",
        soon=True,
    ),
    Planted(
        "an input that was withdrawn begins its turn",
        "actors/session/inbox.py",
        """self._withdrawn[number] = self.waiting.pop(number), mail""",
        """self._withdrawn[number] = each, mail""",
        "An input that was taken back enters no turn.",
        "taken back",
    ),
    Planted(
        "a compaction stores no messages",
        "storage/sqlite/operations.py",
        """        for row in turn.messages:
            messages +=""",
        """        for row in turn.messages if turn.compaction is None else ():
            messages +=""",
        "Nothing is lost that was acknowledged.",
        "nothing_lost",
        soon=True,
    ),
    Planted(
        "deaths during a turn are not counted",
        "actors/session/actor.py",
        """kept if kept.parked else kept.changed(deaths=kept.deaths + 1)""",
        """kept""",
        "A turn that takes its process down again and again ends.",
        "does not count the end",
        soon=True,
    ),
    Planted(
        "the messages of a turn that was refused stay",
        "actors/session/conversation.py",
        """            self.context.truncate(record.message_count)
            self.context.leave_out""",
        """            self.context.leave_out""",
        "What was stored is what was said.",
        "nothing_",
        soon=True,
    ),
    Planted(
        "all tools run again",
        "actors/turn/toolbox.py",
        """reports = tool is not None and tool.restart == "report" and not returned""",
        """reports = False""",
        "A call that may have run is reported to the model, unless its tool allows another run.",
        "a second time",
        soon=True,
    ),
    Planted(
        "nobody is asked before a call runs again",
        "actors/turn/toolbox.py",
        """if tool.restart == "ask":""",
        """if tool.restart == "never":""",
        "Somebody decides whether a call runs again that may have run, if its tool says so.",
        "a second time",
    ),
    Planted(
        "calls do not wait for approval",
        "actors/turn/toolbox.py",
        """asks = approvals is not None and approvals.holds_up(call, tool)""",
        """asks = False""",
        "A call that waits for approval runs if somebody allows it.",
        "nobody has allowed",
        soon=True,
    ),
    Planted(
        "texts of the host are dropped",
        "actors/turn/turn.py",
        """            self.context.append(message)
            self.emit(InputTaken""",
        """            if steers:
                self.context.append(message)
            self.emit(InputTaken""",
        "Nothing is lost that was acknowledged.",
        "nothing_lost",
        soon=True,
    ),
    Planted(
        "states of calls stay",
        "storage/sqlite/open_turns.py",
        """[session for session, commit in steps if commit.settles]""",
        """[session for session, commit in steps if commit.settles and commit.creation]""",
        "The states of calls go with their answer.",
        "nothing_stays",
        soon=True,
    ),
    Planted(
        "an archive leaves the inputs",
        "storage/sqlite/operations.py",
        """        db.execute(_EMPTY, (key,))
""",
        "",
        "A session that was archived has nothing to do.",
        "nothing_stays",
        soon=True,
    ),
    Planted(
        "an archive leaves the open turn",
        "actors/session/actor.py",
        """if "delete" not in asked and conversation.open_turn""",
        """if "delete" in asked and conversation.open_turn""",
        "A session that was archived has nothing to do.",
        "calls_have_results",
        soon=True,
    ),
    Planted(
        "a lease is put back with events that are not stored",
        "actors/session/conversation.py",
        """if lease is not None and not self.log.pending:""",
        """if lease is not None:""",
        "No two events of a session have one number, also if the first one was only shown.",
        "events_once",
    ),
    Planted(
        "a fork has the beginning of the open turn",
        "calls/forking.py",
        """at = record.turn.prompt_at if at is None else at""",
        """at = record.message_count if at is None else at""",
        "A fork has the turns that have ended.",
        "forks_are_whole",
    ),
    Planted(
        "a result in the background has a new key each time",
        "actors/session/background.py",
        """f"background:{self._call(wait).key}\"""",
        """f"background:{self._call(wait).key}:{trio.current_time()}\"""",
        "The result of a call in the background enters once.",
        "has entered",
    ),
    Planted(
        "a call in the background that waits begins anew",
        "actors/session/background.py",
        """if wait.state == "answered" or data.get("later"):""",
        """if wait.state == "settled":""",
        "A result from outside that was taken is the one of its call.",
        "as one that waits for its result",
    ),
    Planted(
        "an allowed tool has other calls wait on",
        "actors/session/answering.py",
        """return (first, *(answered(each, allowed, now) for each in others))""",
        """return (first, *(answered(each, allowed, now) for each in others[:0]))""",
        "No call waits for approval whose tool was allowed for the session.",
        "allowed_stay_allowed",
    ),
    Planted(
        "a client runs a call for each connection",
        "transport/client/tools.py",
        """if (here := self.runs.get(wanted.key)) is None:""",
        """if (here := self.runs.get(f"{wanted.key}{len(self.runs)}")) is None:""",
        "A client runs a call once, however often it is asked.",
        "a second time",
    ),
    Planted(
        "the end of a child is not told with its commit",
        "actors/session/conversation.py",
        """            sends = (*sends, *self._told(ending, record))
""",
        """            pass
""",
        "A child that has ended has told its parent, whatever befalls its process.",
        "never knew the end",
        soon=True,
    ),
    Planted(
        "nobody tells the children of calls that are over",
        "actors/session/conversation.py",
        """if wait.state == "waiting" and wait.child is not None:""",
        """if wait.state == "settled" and wait.child is not None:""",
        "A child works no more once nobody waits for its end.",
        "do not come to rest",
    ),
    Planted(
        "a call that is made again has another child",
        "actors/session/children.py",
        """    return id_beside(session_id, f"child:{key}")""",
        """    return id_beside(session_id, f"child:{key}:{new_session_id()}")""",
        "A call that delegates work has one child.",
        "children_",
    ),
    Planted(
        "notices are prompts",
        "actors/session/inbox.py",
        """            if each.input.is_notice:
                self.notices""",
        """            if each.input.kind == "cancel":
                self.notices""",
        "No model reads a notice.",
        "children_",
    ),
    Planted(
        "the end of a child is not counted",
        "actors/turn/toolbox.py",
        """            self.spends(wait.expense)
            if wait.reason == "peer":""",
        """            if wait.reason == "peer":""",
        "What a child has spent counts for the budget of its parent.",
        "children_are_counted",
        soon=True,
    ),
    Planted(
        "the children of a session that is deleted stay",
        "storage/sqlite/operations.py",
        """    send_down(db, operation.session_id, retiring("delete"))
""",
        "",
        "A session that is deleted takes its children along.",
        "nothing_stays",
        soon=True,
    ),
    Planted(
        "a prompt for later is taken at once",
        "actors/session/inbox.py",
        """is None or due <= self.now()):""",
        """is None or due > due.min):""",
        "A prompt that waits for a time begins no turn before it.",
        "later_is_later",
        soon=True,
    ),
    Planted(
        "each decision counts",
        "actors/session/answers.py",
        """message.decision is not None and wait.decision.allow == message.decision.allow:""",
        """message.decision is not None:""",
        "The first decision about a call counts.",
        "one_decision",
        soon=True,
    ),
)
"""All of them."""
