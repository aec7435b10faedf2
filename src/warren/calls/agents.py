"""Calls about agents."""

from typing import ClassVar

import attrs

from warren.agents.spec import AgentDetails, AgentPage
from warren.base.fields import CAN_CONFLICT, Between, is_name, is_text, is_whole, optional
from warren.base.values import frozen
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts


@frozen(kw_only=True)
class AgentsRequest(Call[AgentPage]):
    """A page of the agents.

    Attributes:
        offset: number of agents to skip.
        limit: the most agents to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="agents/list",
        doc="List the agents that sessions can be made of, or were made of, by name.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen
class AgentRequest(Call[AgentDetails]):
    """An agent to show.

    Attributes:
        name: its name.
        version: the version to show; null takes the one that new sessions get, or else the newest stored one.
    """

    facts: ClassVar[Facts] = Facts(
        name="agents/get",
        doc="Show an agent, and the versions of it that sessions were made of.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    name: str = attrs.field(validator=is_name, metadata=CAN_CONFLICT)
    version: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True, metadata=CAN_CONFLICT)
