"""Reasoning between tags at the head of a text, as servers without a parser for it send it. No I/O."""

from typing import Final, Literal

from warren.base.values import define

THINK: Final = "think"
TAGS: Final = (THINK, "thinking", "thought")
_OPEN: Final = {f"<{tag}>": tag for tag in TAGS}
MOST_HELD: Final = 256
"""Characters of white space that wait for what follows them."""


@define
class Head:
    """Parts the reasoning at the head of a text from the text behind it, wherever they are cut.

    White space around the tags belongs to neither.

    Attributes:
        tag: the tag around the reasoning; empty as long as there is none.
        done: whether all further text is the answer's.
    """

    tag: str = ""
    done: bool = False
    _place: Literal["before", "opened", "inside", "behind"] = "before"
    _held: str = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next part of the text; return what reasoning, and what text there is for certain."""
        held = self._held + text
        if self._place == "before":
            begin = held.lstrip()
            if begin and begin[0] != "<":  # nearly every text
                self.done = True
                return "", held
            opened = next((each for each in _OPEN if begin.startswith(each)), None)
            if opened is None:
                if len(held) > MOST_HELD or not any(each.startswith(begin) for each in _OPEN):
                    self.done = True
                    return "", held
                self._held = held
                return "", ""
            self.tag, self._place, held = _OPEN[opened], "opened", begin.removeprefix(opened)
        if self._place == "opened":
            held = held.lstrip()
            self._place = "inside" if held else "opened"
        reasoning = ""
        if self._place == "inside":
            reasoning, held = self._inside(held)
        if self._place == "behind":
            self._held, held = "", held.lstrip()
            self.done = bool(held)
            return reasoning, held
        self._held = held
        return reasoning, ""

    def _inside(self, held: str) -> tuple[str, str]:
        """Return the reasoning in a part of it, and what waits or comes behind."""
        close = f"</{self.tag}>"
        reasoning, closed, behind = held.partition(close)
        if closed:
            self._place = "behind"
            return reasoning.rstrip(), behind
        cut = held.rfind("<", max(0, len(held) - len(close)))
        certain = held[:cut] if cut >= 0 and close.startswith(held[cut:]) else held
        if len(certain) - len(certain.rstrip()) <= MOST_HELD:
            certain = certain.rstrip()
        return certain, held[len(certain) :]

    def end(self) -> tuple[str, str]:
        """Return the rest, as reasoning and text: nothing follows."""
        self.done = True
        if self._place == "inside":
            return self._held.rstrip(), ""
        return "", self._held if self._place == "before" else ""


def parted(text: str) -> tuple[str, str]:
    """Return the reasoning and the text of an answer that begins within the tags: its template has opened them.

    Only a closing tag that stands alone in its line, outside of a block of code, counts.
    """
    reasoning, closed, behind = text.partition("\n</think>\n")
    if not closed or "think>" in reasoning or "</think>" in behind or reasoning.count("```") % 2:
        return "", text
    return reasoning.strip(), behind.lstrip()
