"""The promises of the service, each as a function that yields what breaks it in what is left of a run."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final

import attrs

from tests.simulation.record import RESULT, Record, results_in
from tests.simulation.servers import name_of
from tests.simulation.users import Prompt, Told
from warren.actors.turn.approvals import NOBODY
from warren.actors.turn.toolbox import RUNS_ON
from warren.conversation.delegation import Delegation
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from warren.conversation.records import SessionRecord
from warren.conversation.views import HistoryPage

PASSING: Final = frozenset(
    {"closed", "connection_lost", "crash", "disk_full", "leased", "lease_lost", "unreachable", "shutting_down"}
)
"""Causes that are no end of a key. Of a turn that is stored at its end they may be."""
SLACK: Final = 0.001
"""Seconds within which two times are the same."""
NO_MORE: Final = "it is not gone on with (limits.resumptions)"
"""Why a turn ends that has taken as many processes down as a turn may: that is its end, if the record says so too."""


@attrs.frozen
class Left:
    """What is left of a run.

    Attributes:
        told: what the users of each session were told.
        record: what the servers and the stores have seen.
        pages: the history of each session and of each fork; None for those that nobody finds any more.
        events: the first and the last number of each event of a session that is stored, in order.
        remains: rows of the store that should have gone.
        records: the records of all sessions that were not deleted.
        roots: of each session that was not deleted, and is no fork, what the users of the one were told that has
            delegated its work first.
    """

    told: Sequence[Told]
    record: Record
    pages: Mapping[str, HistoryPage | None]
    events: Mapping[str, Sequence[tuple[int, int]]]
    remains: Sequence[str]
    records: Mapping[str, SessionRecord] = attrs.field(factory=dict)
    roots: Mapping[str, Told] = attrs.field(factory=dict)

    def messages(self, session_id: str) -> Sequence[Message]:
        """Return the messages of a session; none for one that nobody finds any more."""
        page = self.pages.get(session_id)
        return [] if page is None else [each.message for each in page.messages]

    @property
    def children(self) -> Mapping[str, Delegation]:
        """The places of all child sessions that calls have made, also of those that were deleted."""
        there = {key: each.delegation for key, each in self.records.items() if each.delegation is not None}
        made = self.record.children | there
        return {key: place for key, place in made.items() if place.call_id is not None}

    def undisturbed(self, session_id: str) -> bool:
        """Return whether nobody has asked for the end of a turn of a session, nor of those that it works for."""
        told, children = self.roots.get(session_id), self.children
        if told is None or told.disturbed or told.leaving or not told.durable:
            return False
        worn = {key for key, _ in self.record.worn}
        at: str | None = session_id
        while at is not None:
            if at in told.touched or at in self.record.cancelled or at in worn or at in self.record.unsure:
                return False
            at = children[at].session_id if at in children else None
        return True

    @property
    def sessions(self) -> Sequence[Told]:
        """The sessions that are there."""
        return [told for told in self.told if self.pages.get(told.session_id) is not None]


def _names(messages: Sequence[Message]) -> list[str]:
    found = (name_of(each.content) for each in messages if isinstance(each, UserMessage))
    return [name for name in found if name is not None]


def one_end(left: Left) -> Iterator[str]:
    """Each key has one end, which is the same for every asker, from any process."""
    for told in left.told:
        for key, ends in told.ends.items():
            if told.durable and len(set(ends)) > 1:
                yield f"the key {key} of session {told.place} has several ends: {sorted(set(ends))}"


def true_end(left: Left) -> Iterator[str]:
    """No stop, no fault of the store and no death is the end of a key, but one more death than a turn survives."""
    for told in left.told:
        for prompt in told.prompts.values() if told.durable else ():
            error = prompt.error
            if error is None or not (prompt.keyed and error.cause in {*PASSING, "outcome_unknown"}):
                continue
            deaths = left.record.worn.get((told.session_id, error.details.get("first_seq", 0)), 0)
            if error.message != f"a process ended {deaths} times during the turn: {NO_MORE}":
                yield f"the end of {prompt.name} is {prompt.error!r}"


def nothing_lost(left: Left) -> Iterator[str]:
    """Nothing is lost that was acknowledged: prompts with their answers, texts of the host, labels and ends."""
    for told in left.told:
        if left.pages.get(told.session_id) is None:
            if told.session_id and not told.leaving:
                yield f"session {told.place} is not there"
            continue
        messages = left.messages(told.session_id)
        names = set(_names(messages))
        texts = {each.text for each in messages if isinstance(each, AssistantMessage)}
        for prompt in told.prompts.values():
            if prompt.text is not None and not (prompt.name in names and prompt.text in texts):
                yield f"{prompt.name} was answered with {prompt.text!r}, and its session has no such message"
        contexts = {name_of(each.content) for each in messages if isinstance(each, ContextMessage)}
        for name in told.contexts if not (told.leaving or told.disturbed) else ():  # an end drops the inbox
            if name not in contexts and name not in told.waiting:
                yield f"the text {name} was taken, and is neither in its session nor does it wait"
        for label in told.labels if not told.over else ():
            if label not in told.kept_labels:
                yield f"session {told.place} was given the label {label}, and does not have it"


def schedules_are_kept(left: Left) -> Iterator[str]:
    """What was to be sent at a time is sent, as often as the schedule says, and no more often."""
    for told in left.sessions:
        messages = left.messages(told.session_id)
        names = _names(messages)
        for name in told.scheduled if not (told.leaving or told.disturbed) else ():
            if name not in names:
                yield f"{name} was to be sent at a time, and is not in its session"
        said = [each.content for each in messages if isinstance(each, UserMessage)]
        for prompt, times in told.fired.items() if not (told.leaving or told.disturbed) else ():
            if said.count(prompt) != times:
                yield f"{prompt!r} was sent {times} times, and is in session {told.place} {said.count(prompt)} times"


def nothing_twice(left: Left) -> Iterator[str]:
    """Nothing is there twice: no prompt, no text of the host, no result of a call."""
    for session_id, told in left.roots.items():
        messages = left.messages(session_id)
        found = _names(messages)
        found += [name for each in messages if isinstance(each, ContextMessage) and (name := name_of(each.content))]
        found += [result for each in messages for result in results_in(each)]
        for name in {each for each in found if found.count(each) > 1}:
            yield f"session {told.place} has {name} {found.count(name)} times"


def in_order(left: Left) -> Iterator[str]:
    """A prompt whose end was known before another one was sent is before that one."""
    for told in left.sessions:
        place = {name: number for number, name in enumerate(_names(left.messages(told.session_id)))}
        there = [prompt for prompt in told.prompts.values() if prompt.name in place and prompt.ended is not None]
        for first in there:
            for second in there:
                if _before(first, second) and place[first.name] > place[second.name]:
                    yield f"{first.name} had ended before {second.name} was sent, and is behind it"


def _before(first: Prompt, second: Prompt) -> bool:
    known = first.text is not None or (first.keyed and first.error is not None)
    return known and first.ended is not None and first.ended < second.sent


def queue_in_order(left: Left) -> Iterator[str]:
    """Prompts that wait begin their turns in the order in which the inbox shows them."""
    for told in left.sessions:
        place = {name: number for number, name in enumerate(_names(left.messages(told.session_id)))}
        for queue in told.queues:
            for first, second in pairwise([name for name in queue if name in place]):
                if place[first] > place[second]:
                    yield f"{first} waited before {second}, and its turn came later"


def reads_are_fresh(left: Left) -> Iterator[str]:
    """A history has each prompt whose answer was known before the history was asked for, at any process."""
    for told in left.sessions:
        for asked, names in told.seen:
            for prompt in told.prompts.values():
                known = prompt.text is not None and prompt.ended is not None and prompt.ended < asked
                if known and prompt.name not in names:
                    yield f"{prompt.name} was answered, and a history of session {told.place} did not have it"


def events_once(left: Left) -> Iterator[str]:
    """Each follower sees each event once, in order, and those that stay to the end see all of them."""
    for told in left.told:
        for sight in told.sights if not told.leaving else ():  # the log ends with its session
            yield from sight.wrong


def numbers_rise(left: Left) -> Iterator[str]:
    """The numbers of stored events rise, and no two events have the same one."""
    for session_id, events in left.events.items():
        for (_, last), (first, _) in pairwise(events):
            if first <= last:
                yield f"session {session_id} has the event {first} behind {last}"


def forks_are_beginnings(left: Left) -> Iterator[str]:
    """A fork begins with the first messages of its original."""
    for told in left.sessions:
        for fork in told.forks:
            if left.pages.get(fork) is None:
                yield f"a fork of session {told.place} is not there"
            messages = left.messages(fork)
            if list(messages) != list(left.messages(told.session_id))[: len(messages)]:
                yield f"a fork of session {told.place} is not its beginning"


def forks_are_whole(left: Left) -> Iterator[str]:
    """A fork ends with a turn that had ended, and with nothing of one that was open."""
    for told in left.sessions:
        ends = left.record.ends.get(told.session_id, {0})
        for fork in told.whole if told.session_id not in left.record.unsure else ():
            messages = left.messages(fork)
            last = max((each for each in ends if each <= len(messages)), default=0)
            if not all(_comes_before(each) for each in messages[last:]):
                yield f"a fork of session {told.place} has the beginning of a turn"


def _comes_before(message: Message) -> bool:
    """Return whether a message may be of an input that came before the prompt of its turn."""
    return isinstance(message, ContextMessage) or (isinstance(message, UserMessage) and message.steered)


def calls_have_results(left: Left) -> Iterator[str]:
    """Each call in a history has its result, behind the answer that made it."""
    for session_id, page in left.pages.items():
        messages = [] if page is None else [each.message for each in page.messages]
        for message, following in pairwise([*messages, None]):
            calls = [each.id for each in message.tool_calls] if isinstance(message, AssistantMessage) else []
            found = list(results_in(following)) if isinstance(following, ToolResultsMessage) else []
            if calls != found:
                yield f"session {session_id} has the calls {calls}, and the results {found}"


def results_stay(left: Left) -> Iterator[str]:
    """A result that was stored on its own is the one that the history has."""
    for session_id in left.pages:
        for message in left.messages(session_id):
            for each in message.results if isinstance(message, ToolResultsMessage) else ():
                stored = left.record.results.get((session_id, each.tool_use_id), each.content)
                if stored != each.content:
                    yield f"{each.tool_use_id} had the result {stored!r}, and has {each.content!r} now"


def background_ends_once(left: Left) -> Iterator[str]:
    """The result of a call in the background enters its session once, whatever befalls the processes."""
    for told in left.sessions:
        messages = left.messages(told.session_id)
        entered = [found[1] for found in _entered(messages)]
        for call_id in {each for each in entered if entered.count(each) > 1}:
            yield f"the result of {call_id} has entered {entered.count(call_id)} times"
        taken_back = {found[1] for text in told.taken_back if (found := RESULT.match(text))}
        for call_id, result in _results(messages).items() if told.durable and not told.leaving else ():
            if result == RUNS_ON.format(call_id) and call_id not in (*entered, *taken_back):
                yield f"the result of {call_id} has never entered"


def _entered(messages: Sequence[Message]) -> Iterator[re.Match[str]]:
    """Yield the id and the result of each call in the background whose result has entered."""
    for message in messages:
        found = RESULT.match(message.content) if isinstance(message, UserMessage | ContextMessage) else None
        if found is not None:
            yield found


def _results(messages: Sequence[Message]) -> Mapping[str, str]:
    """Return the results that calls have in their turns, by id."""
    found = (each for message in messages if isinstance(message, ToolResultsMessage) for each in message.results)
    return {each.tool_use_id: each.content for each in found}


def one_result(left: Left) -> Iterator[str]:
    """Of the results that are given to a call from outside one is taken, and it is the one that the call has."""
    for told in left.sessions:
        messages = left.messages(told.session_id)
        found = {call_id: text for call_id, text in _results(messages).items() if text != RUNS_ON.format(call_id)}
        found |= {entered[1]: entered[2] for entered in _entered(messages)}
        for call_id, given in told.given.items() if told.durable else ():
            taken = {result for result, error in given if error is None}
            if len(taken) > 1:
                yield f"{call_id} was given several results, and all were taken: {sorted(taken)}"
            if (has := found.get(call_id)) is None or told.disturbed or told.leaving:
                continue
            first = given[0][1]
            late = first is not None and any(each in first.message for each in ("expired", "in time", "no turn"))
            waited = (told.session_id, call_id) in left.record.handed and not late
            if has not in taken and (taken or waited):
                yield f"{call_id} has the result {has!r}, and was given {given}"


def withdrawn_stay_away(left: Left) -> Iterator[str]:
    """An input that was taken back enters no turn."""
    for told in left.sessions:
        messages = left.messages(told.session_id)
        names = {name_of(each.content) for each in messages if isinstance(each, UserMessage | ContextMessage)}
        for name in names.intersection(told.withdrawn) - {None}:
            yield f"{name} was taken back, and is in its session"


def nobody_allowed(left: Left) -> Iterator[str]:
    """A call that waits for approval runs if somebody allows it."""
    for told in left.told:
        for run in left.record.runs:
            if run.call_id.partition("-")[0] in told.forbidden:
                yield f"{run.call_id} ran, and nobody has allowed it"


def one_decision(left: Left) -> Iterator[str]:
    """Of the decisions about a call one is taken, and the call runs or does not run as that says."""
    for told in left.sessions:
        results = _results(left.messages(told.session_id))
        for call_id, decided in told.decided.items():
            taken = {decision for decision, error in decided if error is None}
            if len(taken) > 1:
                yield f"{call_id} was allowed and denied, and both were taken"
            if taken == {"deny"} and any(
                (told.session_id, call_id) == (e.session_id, e.call_id) for e in left.record.runs
            ):
                yield f"{call_id} was denied, and ran"
            if taken == {"allow"} and (result := results.get(call_id, "")).startswith(("not run: it was", NOBODY)):
                yield f"{call_id} was allowed, and has the result {result!r}"


def allowed_stay_allowed(left: Left) -> Iterator[str]:
    """No call waits for approval whose tool was allowed for the session."""
    for told in left.sessions:
        for call_id, result in _results(left.messages(told.session_id)).items() if not told.forgotten else ():
            if result == NOBODY and call_id.startswith(tuple(told.allowed)):
                yield f"{call_id} has waited for approval, and its tool was allowed for the session"


def nothing_stays(left: Left) -> Iterator[str]:
    """What has ended leaves nothing in the store that would be taken up again."""
    yield from left.remains


def ends_stay(left: Left) -> Iterator[str]:
    """A session that was deleted is not found, and one that was archived can be read."""
    for told in left.told:
        if told.over and (told.over == "deleted") != (left.pages.get(told.session_id) is None):
            yield f"session {told.place} was {told.over}"


def children_once(left: Left) -> Iterator[str]:
    """A call that delegates work has one child, and one that has none has failed."""
    made = Counter((place.session_id, place.call_id) for place in left.children.values())
    for (_, call_id), times in made.items():
        if times > 1:
            yield f"{call_id} has made {times} children"
    for session_id in left.pages if not left.record.unsure else ():
        messages = left.messages(session_id)
        calls = {
            call.id
            for each in messages
            if isinstance(each, AssistantMessage)
            for call in each.tool_calls
            if call.name == "delegate"
        }
        for call_id, result in _outcomes(messages).items():
            forked = session_id not in left.roots
            if call_id in calls and not result.is_error and not forked and (session_id, call_id) not in made:
                yield f"{call_id} has the result {result.content!r}, and has made no child"


def _outcomes(messages: Sequence[Message]) -> Mapping[str, ToolResult]:
    found = (each for message in messages if isinstance(message, ToolResultsMessage) for each in message.results)
    return {each.tool_use_id: each for each in found}


def children_end_once(left: Left) -> Iterator[str]:
    """A child tells its parent once how its work has ended, and says there what it says to the parent."""
    for child, place in left.children.items():
        if child in left.record.unsure:
            continue
        told = left.record.told.get(child, [])
        if len(told) != 1:
            yield f"the child of {place.call_id} has ended {len(told)} times: {[each.text for each in told]}"
        messages = left.messages(child) if left.pages.get(child) is not None else None
        for each in told if messages is not None else ():
            texts = {message.text for message in messages or () if isinstance(message, AssistantMessage)}
            if each.end is not None and not each.end.is_error and each.text not in texts:
                yield f"the child of {place.call_id} has ended with {each.text!r}, and its session has no such message"


def children_answer(left: Left) -> Iterator[str]:
    """The result of a call that delegates work is the end of its child."""
    for child, place in left.children.items():
        result = _outcomes(left.messages(place.session_id)).get(place.call_id or "")
        told = left.record.told.get(child, [])
        if (
            result is None
            or child in left.record.unsure
            or (not left.undisturbed(place.session_id) and result.is_error)
        ):
            continue
        ends = [(each.text, each.end is not None and each.end.is_error) for each in told]
        late = result.is_error and "in time" in result.content
        if (result.content, result.is_error) not in ends and not late:
            yield f"{place.call_id} has the result {result.content!r}, and its child has ended with {ends}"


def budgets_are_kept(left: Left) -> Iterator[str]:
    """A session and its children spend no more than its budget together, nor do a turn and its children."""
    for session_id, record in left.records.items():
        most, steps = record.options.budget, record.spent.steps + record.delegated.steps
        if most is not None and most.max_steps is not None and steps > most.max_steps:
            yield f"session {session_id} and its children have taken {steps} steps of {most.max_steps}"
    for told in left.sessions:
        messages = left.messages(told.session_id)
        for name, most_steps in told.budgets.items() if told.durable else ():
            at = next(
                (at for at, e in enumerate(messages) if isinstance(e, UserMessage) and name_of(e.content) == name), None
            )
            if at is None:
                continue
            turn = takewhile(lambda each: not isinstance(each, UserMessage) or each.steered, messages[at + 1 :])
            steps = sum(isinstance(each, AssistantMessage) for each in turn)
            for child, place in left.children.items():
                if place.session_id == told.session_id and (place.call_id or "").startswith(f"{name}-"):
                    steps += sum(e.end.expense.steps for e in left.record.told.get(child, ()) if e.end is not None)
            if steps > most_steps:
                yield f"{name} and its children have taken {steps} steps of {most_steps}"


def children_are_counted(left: Left) -> Iterator[str]:
    """What a child has spent counts for the session whose call has the child's end as its result."""
    for session_id, spent in _answered(left).items():
        record = left.records.get(session_id)
        if record is not None and record.delegated.steps < spent:
            yield f"session {session_id} counts {record.delegated.steps} steps of its children, which took {spent}"


def _answered(left: Left) -> Mapping[str, int]:
    """Return the steps of the children whose ends are results of calls, by parent."""
    found: Counter[str] = Counter()
    for child, place in left.children.items():
        result = _outcomes(left.messages(place.session_id)).get(place.call_id or "")
        told = left.record.told.get(child, [])
        if result is not None and left.undisturbed(place.session_id) and len(told) == 1:
            end = told[0].end
            if end is not None and (result.content, result.is_error) == (told[0].text, end.is_error):
                found[place.session_id] += end.expense.steps
    return found


def later_is_later(left: Left) -> Iterator[str]:
    """A prompt that waits for a time begins its turn after that time, and does begin it."""
    for name, due in left.record.dues.items():
        asked = left.record.first_asked.get(name)
        if asked is not None and asked < due - SLACK:
            yield f"{name} was in a turn {due - asked} s before its time"
    for told in left.sessions:
        names = _names(left.messages(told.session_id))
        for name in left.record.dues if left.undisturbed(told.session_id) else ():
            place, _, number = (name or "").partition(".")
            if place == f"s{told.place}" and "." in number and name not in names:
                yield f"{name} was to be sent at a time, and is not in its session"


def notices_are_no_prompts(left: Left) -> Iterator[str]:
    """No model reads what a session tells another one by a notice."""
    ends = {each.text for told in left.record.told.values() for each in told}
    for session_id in left.pages:
        for each in left.messages(session_id):
            if isinstance(each, UserMessage | ContextMessage) and each.content in ("", *ends):
                yield f"session {session_id} has the notice {each.content!r} as a message"


CHECKS: Final[Sequence[Callable[[Left], Iterator[str]]]] = (
    one_end,
    true_end,
    nothing_lost,
    schedules_are_kept,
    nothing_twice,
    in_order,
    queue_in_order,
    reads_are_fresh,
    events_once,
    numbers_rise,
    forks_are_beginnings,
    forks_are_whole,
    calls_have_results,
    results_stay,
    one_result,
    background_ends_once,
    withdrawn_stay_away,
    nobody_allowed,
    one_decision,
    allowed_stay_allowed,
    children_once,
    children_end_once,
    children_answer,
    budgets_are_kept,
    children_are_counted,
    later_is_later,
    notices_are_no_prompts,
    nothing_stays,
    ends_stay,
)


def check(left: Left) -> list[str]:
    """Return all that breaks a promise."""
    return [f"{promise.__name__}: {problem}" for promise in CHECKS for problem in promise(left)]
