"""The part of `docs/architecture.md` that is made from the table of the session's machine: a diagram, and the answers.

`python -m tests.docs.diagram docs/architecture.md` renews it in place.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.parts import with_part
from warren.actors.session.machine import TABLE, Effect, Move, Signal, State, Verdict

BEGIN: Final = "<!-- made from the table in actors/session/machine.py by `make docs` -->\n"
END: Final = "<!-- the end of what is made from the table -->\n"
REQUESTS: Final = (Signal.CLAIM, Signal.INTERRUPT, Signal.RETIRE, Signal.RETIRE_NOW, Signal.EVICT, Signal.NEED)


def renewed(page: str) -> str:
    """Return the page with the diagram and the answers as the table has them now."""
    return with_part(page, BEGIN, END, [*_diagram(), "\n", *_answers()])


def _diagram() -> Iterator[str]:
    """Yield the moves from one state to another, each with its signals and effects."""
    yield f"```mermaid\nstateDiagram-v2\n    [*] --> {State.IDLE.name}\n"
    for state, row in TABLE.items():
        moves: dict[tuple[State, tuple[Effect, ...]], list[str]] = {}
        for signal, move in row.items():
            if isinstance(move, Move) and move.target is not state:
                moves.setdefault((move.target, move.effects), []).append(signal.name)
        for (target, effects), signals in moves.items():
            done = " / " + ", ".join(each.name for each in effects) if effects else ""
            yield f"    {state.name} --> {target.name}: {', '.join(signals)}{done}\n"
    yield f"    {State.CLOSED.name} --> [*]\n```\n"


def _answers() -> Iterator[str]:
    """Yield a table of the answer of each state to each request."""
    yield f"| state | {' | '.join(each.name for each in REQUESTS)} |\n|{'---|' * (len(REQUESTS) + 1)}\n"
    for state, row in TABLE.items():
        yield f"| {state.name} | {' | '.join(_cell(state, row.get(each)) for each in REQUESTS)} |\n"


def _cell(state: State, rule: Move | Verdict | None) -> str:
    match rule:
        case None:
            return ""
        case Verdict.POSTPONE:
            return "postponed"
        case Verdict():
            return rule.name.lower().replace("_", " ")
        case Move(target=target) if target is not state:
            return f"→ {target.name}"
    return ", ".join(each.name for each in rule.effects) or "stays"


if __name__ == "__main__":
    PAGE: Final = Path(sys.argv[1])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
