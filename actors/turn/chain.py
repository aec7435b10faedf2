"""The chain of messages between peers that a turn belongs to."""

from warren.base.values import define
from warren.conversation.inputs import Input


@define(eq=False)
class Chain:
    """Counts the messages of peers that have followed from one another up to a running turn.

    Attributes:
        hops: their number since a user's prompt.
    """

    hops: int = 0

    def take(self, input_: Input) -> None:
        """Note that the turn takes an input: a user's words begin a new chain, a peer's go on with theirs."""
        if input_.kind == "peer":
            self.hops = max(self.hops, input_.hops)
        elif input_.kind == "steer":
            self.hops = 0
