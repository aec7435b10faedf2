"""The text of an answer as it grows with the events of its turn."""

import attrs

from warren.base.values import define
from warren.conversation import events


@define
class AnswerText:
    """Makes the shown text of a turn's events: each character once, even if retried calls left gaps."""

    _shown: list[str] = attrs.field(factory=list)

    def text_of(self, event: events.Event) -> str:
        """Return the text that the event adds to the screen."""
        match event:
            case events.RunStarted() | events.TurnStarted():
                between = "\n\n" if self._shown and isinstance(event, events.TurnStarted) else ""
                self._shown.clear()
                return between
            case events.TextDelta(delta=delta):
                self._shown.append(delta)
                return delta
            case events.TextComplete(content=content):
                # The end of a step's whole text that was not shown yet, or all of it if another text was shown.
                shown = "".join(self._shown)
                self._shown = [content]
                return content.removeprefix(shown) if content.startswith(shown) else f"\n\n{content}"
            case events.ModelSwitched(discarded=True) | events.TurnResumed():  # a shown text cannot be taken back
                between = "\n\n" if self._shown else ""
                self._shown.clear()
                return between
        return ""
