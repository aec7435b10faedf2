"""Agents as sessions know them: their names, and the version that a session was made with."""

from typing import Final

from warren.base.values import frozen

SHORT: Final = 12
"""Digits of a version that people see."""

INSTRUCTIONS: Final = "the instructions"
"""The part of an agent that is code if a function makes its instructions."""


@frozen
class AgentRef:
    """One version of an agent.

    Attributes:
        name: its name.
        version: the SHA-256 of its specification, 64 hexadecimal digits.
    """

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version[:SHORT]}"


@frozen
class AgentPin(AgentRef):
    """The agent that a session was made with, as its record keeps it.

    Attributes:
        code: the parts of the agent that are code, such as `the tool pay`: only a process that has the agent has them.
        since: the position of its instructions in the conversation.
    """

    code: tuple[str, ...] = ()
    since: int = 0

    @property
    def made_anew(self) -> bool:
        """Whether a function makes its instructions at the beginning of each turn."""
        return INSTRUCTIONS in self.code

    @property
    def of_child(self) -> "AgentPin":
        """The agent as a child session has it: with instructions of its own."""
        return AgentPin(self.name, self.version, tuple([each for each in self.code if each != INSTRUCTIONS]))

    @property
    def ref(self) -> AgentRef:
        """The version, for callers."""
        return AgentRef(self.name, self.version)
