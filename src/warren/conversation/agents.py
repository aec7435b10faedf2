"""Agents as sessions know them: their names, and the version that a session was made with."""

from typing import Final

from warren.base.values import frozen

SHORT: Final = 12
"""Digits of a version that people see."""


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
    """

    code: tuple[str, ...] = ()

    @property
    def ref(self) -> AgentRef:
        """The version, for callers."""
        return AgentRef(self.name, self.version)
