"""A model's context window and its parts."""

from warren.base.values import frozen


@frozen
class Window:
    """A model's context window and its fixed parts, in estimated tokens.

    Attributes:
        tokens: the whole window, for a request and its answer together.
        answer: cap of the answer. A cap above a quarter of the window counts as a quarter: few answers are so long.
        tools: the part of a request that the definitions of the tools take.
    """

    tokens: int
    answer: int = 0
    tools: int = 0

    @property
    def request(self) -> int:
        """Tokens that a request may have. A tenth of the window is reserved for the error of the estimate."""
        return self.tokens * 9 // 10 - min(self.answer, self.tokens // 4)

    @property
    def room(self) -> int:
        """Tokens that the messages of a request may have; 0 or less if the tools take all."""
        return self.request - self.tools
