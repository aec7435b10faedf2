"""The turns that were acknowledged, and their comparison with the sessions at the end. No I/O."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import attrs

from warren.base.values import define, frozen


@frozen
class Acknowledged:
    """A turn whose answer a user has got.

    Attributes:
        prompt: its prompt, which no other turn of the run has.
        since: seconds from the start of the run to the request that was answered.
        at: the same to its answer.
        node: the node that answered the call.
    """

    prompt: str
    since: float
    at: float
    node: int


@define
class SessionLedger:
    """All that users and followers have seen of one session.

    Attributes:
        session_id: the session.
        turns: the acknowledged turns, in order.
        followed: the numbers of the events that its follower got, in order.
        gaps: the numbers behind which its follower was told, by `stream_truncated`, that events are missing.
    """

    session_id: str
    turns: list[Acknowledged] = attrs.field(factory=list)
    followed: list[int] = attrs.field(factory=list)
    gaps: list[int] = attrs.field(factory=list)


@frozen
class Verdict:
    """The result of the check.

    Attributes:
        acknowledged: turns.
        lost: acknowledged turns that the session does not have.
        twice: prompts that the session has more than once.
        out_of_order: sessions whose turns are not in the order in which they were acknowledged.
        numbers: problems with the numbers of events, with the session.
    """

    acknowledged: int
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    out_of_order: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.twice or self.out_of_order or self.numbers)


@frozen
class Stored:
    """The rows of a session at the end.

    Attributes:
        prompts: the prompts of its history, in order.
        numbers: the numbers of its events, in order; of merged deltas the last one.
        ends: the numbers of events that are never merged with others.
    """

    prompts: Sequence[str]
    numbers: Sequence[int]
    ends: Sequence[int]


def judge(ledgers: Sequence[tuple[SessionLedger, Stored]]) -> Verdict:
    """Compare the acknowledged turns and the followed events with the stored ones."""
    lost, twice, disordered, numbers = list[str](), list[str](), list[str](), list[str]()
    for ledger, stored in ledgers:
        counts, said = Counter(stored.prompts), [turn.prompt for turn in ledger.turns]
        lost += [each for each in said if not counts[each]]
        twice += [each for each, count in counts.items() if count > 1]
        place = {prompt: index for index, prompt in reversed(list(enumerate(stored.prompts)))}  # the first of each
        places = [place[each] for each in said if each in place]
        if places != sorted(places):
            disordered.append(ledger.session_id)
        numbers += [f"{ledger.session_id}: {problem}" for problem in _problems(ledger, stored)]
    total = sum(len(ledger.turns) for ledger, _ in ledgers)
    return Verdict(total, tuple(lost), tuple(twice), tuple(disordered), tuple(numbers))


def _problems(ledger: SessionLedger, stored: Stored) -> Iterator[str]:
    for name, seen in (("the log", stored.numbers), ("the follower", ledger.followed)):
        for before, after in pairwise(seen):
            if after <= before:
                yield f"{name} has event {after} after event {before}"
    yield from _missed(ledger, stored)


def _missed(ledger: SessionLedger, stored: Stored) -> Iterator[str]:
    """Yield a problem for each run of stored events that the follower did not get; no marker makes up for them."""
    followed, runs = sorted(ledger.followed), dict[int, list[int]]()
    for number in sorted(set(stored.ends) - set(followed)):
        runs.setdefault(bisect(followed, number), []).append(number)
    for place, missed in runs.items():
        behind = followed[place - 1] if place else 0
        span = f"{missed[0]}" if len(missed) == 1 else f"{missed[0]} to {missed[-1]}"
        verb = "missed" if place < len(followed) else "has not got"
        told = "was told" if behind in ledger.gaps else "was not told"
        yield f"the follower {verb} the stored events {span} behind event {behind}, and {told} so"
