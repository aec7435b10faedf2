"""The specification of an agent: all of it that is data, what its version is made of, and how callers see it."""

import json
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import ClassVar

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.agents import INSTRUCTIONS, AgentPin, AgentRef
from warren.conversation.options import DEFAULTS, SessionOptions
from warren.conversation.views import DamagedRow
from warren.models.tools import ToolSpec


@frozen
class AgentSpec:
    """An agent as data: what its model sees, and what bounds it.

    The bodies of its functions are no part of it: two agents whose functions differ in their code alone are the same
    version.

    Attributes:
        name: its name.
        description: what it is for.
        instructions: its system prompt; empty takes the runtime's.
        options: the options of its sessions, with the names of all its tools.
        functions: those of its tools that are functions of the program.
        made_by: the module and the name of the function that makes its instructions; None if they are a text.
        hooks: the names of its hooks.
        agents: the agents among its tools, each in the version that works for it.
    """

    name: str
    description: str = ""
    instructions: str = ""
    options: SessionOptions = DEFAULTS
    functions: tuple[ToolSpec, ...] = ()
    made_by: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    hooks: tuple[str, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    agents: tuple[AgentRef, ...] = attrs.field(default=(), metadata=LEFT_OUT)

    @cached_property
    def body(self) -> str:
        """Its JSON, the same for equal agents in every process. Raises TypeError if it has no form in JSON."""
        return json.dumps(codec.to_data(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def version(self) -> str:
        """The SHA-256 of its JSON."""
        return version_of(self.body)

    @cached_property
    def pin(self) -> AgentPin:
        """The version as its sessions keep it."""
        code = [f"the tool {each.name}" for each in self.functions]
        code += ["the model"] if self.options.provider == provider_of(self.name) else []
        code += [f"the hook {each}" for each in self.hooks]
        code += [INSTRUCTIONS] if self.made_by is not None else []
        return AgentPin(self.name, self.version, tuple(code))


def provider_of(name: str) -> str:
    """Return the name under which a runtime has the provider that is the model of an agent of this name."""
    return f"agent:{name}"


def version_of(body: str) -> str:
    """Return the version of an agent with this JSON."""
    return sha256(body.encode()).hexdigest()


@frozen
class StoredAgent:
    """A version of an agent that sessions of a tenant were made with.

    Attributes:
        tenant: the tenant.
        version: the version.
        created_at: time at which the tenant's first session was made with it (UTC).
        spec: the agent, as far as this release knows its parts.
    """

    tenant: str
    version: str
    created_at: datetime
    spec: AgentSpec


@frozen
class AgentView:
    """An agent in a list.

    Attributes:
        name: its name.
        version: the version that new sessions get, the newest stored one if no new session can have it.
        here: whether new sessions can be made with it: this runtime has it.
        description: what it is for.
        model: the model of its sessions; None for the runtime's.
        tools: the names of its tools.
    """

    WHOLE: ClassVar[bool] = True
    name: str
    version: str
    here: bool
    description: str = ""
    model: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    tools: tuple[str, ...] = ()


@frozen
class AgentPage:
    """A page of `agents`, by name.

    Attributes:
        agents: the page.
        damaged: damaged agents of the store; they are missing in `agents`, unless the runtime has them.
    """

    agents: tuple[AgentView, ...]
    damaged: tuple[DamagedRow, ...] = ()


@frozen
class AgentVersion:
    """A version of an agent that sessions were made with.

    Attributes:
        version: the version.
        created_at: time at which the first session was made with it (UTC).
    """

    version: str
    created_at: datetime


@frozen
class AgentDetails:
    """One version of an agent, and the versions that sessions were made with.

    Attributes:
        version: the version that is shown.
        here: whether it is the version that new sessions get.
        spec: the agent.
        versions: the newest versions that sessions were made with, the newest first.
    """

    version: str
    here: bool
    spec: AgentSpec
    versions: tuple[AgentVersion, ...] = ()


def view_of(spec: AgentSpec, version: str, *, here: bool) -> AgentView:
    """Return an agent as lists show it."""
    options = spec.options
    return AgentView(spec.name, version, here, spec.description, options.model, options.tools or ())
