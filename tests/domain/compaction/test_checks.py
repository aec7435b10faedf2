"""The checks for compactors of a host's own find what a runtime could not live with."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from warren.base.fields import FieldValueError
from warren.compaction import CompactionConfig, CompactionContext, CompactionError, CompactionResult, DefaultCompactor
from warren.compaction.checks import check_compactor
from warren.conversation.messages import Message
from warren.settings.config import Config


def test_the_default_passes() -> None:
    """As an object and as the class that makes it; so does another budget."""
    check_compactor(DefaultCompactor)
    check_compactor(DefaultCompactor(CompactionConfig(recent_turn_budget=0)))


class Eager(DefaultCompactor):
    def should_compact(self, context: CompactionContext) -> bool:
        return context.current_turn == 0


class Vague(DefaultCompactor):
    def should_compact(self, context: CompactionContext) -> bool:
        return context.last_input_tokens  # type: ignore[return-value]


class Silent(DefaultCompactor):
    def compaction_prompt(self) -> str:
        return " "


class Endless(DefaultCompactor):
    def max_summary_tokens(self) -> int:
        return 0


class Forgetful(DefaultCompactor):
    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        result = super().rebuild_history(messages, summary)
        return attrs.evolve(result, messages=result.messages[:-1])


class Stubborn(DefaultCompactor):
    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        del messages, summary
        raise CompactionError("nothing_to_reduce", "no")


class Content(DefaultCompactor):
    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        return super().rebuild_history(messages, summary.strip() or "nothing was said")


@attrs.define
class Moody(DefaultCompactor):
    calls: int = 0

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        object.__setattr__(self, "calls", self.calls + 1)
        return super().rebuild_history(messages, f"{summary} {self.calls}" if summary.strip() else summary)


class Loose(DefaultCompactor):
    def rebuild_history(self, messages: Sequence[Message], summary: str) -> Any:
        return super().rebuild_history(messages, summary).messages


@pytest.mark.parametrize(
    ("compactor", "rule"),
    [
        (Eager, "at step 0"),
        (Vague, "True or False"),
        (Silent, "compaction_prompt must be a text"),
        (Endless, "max_summary_tokens must be a whole number above 0"),
        (Forgetful, "lost, doubled or changed messages: a long conversation"),
        (Stubborn, "shortened none"),
        (Content, "an empty summary must be a CompactionError"),
        (Moody, "the same for the same input"),
        (Loose, "must return a CompactionResult"),
    ],
)
def test_a_broken_rule_is_named(compactor: type[DefaultCompactor], rule: str) -> None:
    """With the conversation in which it shows."""
    with pytest.raises(AssertionError, match=rule):
        check_compactor(compactor())


@pytest.mark.parametrize("given", ["a text", object(), lambda _config, _window: None, lambda: None])
def test_what_is_no_compactor(given: Any) -> None:
    """It is refused when the settings are made, by the name of the field."""
    with pytest.raises(FieldValueError, match="compactor cannot be used") as caught:
        Config(compaction=CompactionConfig(), compactor=given)
    assert caught.value.field == "compactor"


def test_a_compactor_needs_compaction() -> None:
    """One that would never be asked is a mistake."""
    with pytest.raises(FieldValueError, match="compactor needs compaction, which is off"):
        Config(compactor=DefaultCompactor())
