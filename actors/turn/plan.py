"""The plan of a turn: the settings that the turns of a session share, and what one turn has of its own."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from warren.actors.events.fence import Guard
from warren.actors.limits.tenancy import Spending
from warren.actors.observe.counters import Counters
from warren.actors.protocol import Compact, StartTurn
from warren.actors.resources.completions import Completions
from warren.actors.resources.storage import Storage
from warren.actors.turn.chain import Chain
from warren.actors.turn.hooked import HookChain
from warren.actors.turn.room import CompactionPlan, Lessons, Within
from warren.actors.turn.route import Candidate, Route
from warren.actors.turn.seam import DIRECT, Seam
from warren.base.values import define
from warren.base.windows import Window
from warren.conversation.budget import Budget, Meter
from warren.conversation.categories import Gates
from warren.conversation.events import BudgetType
from warren.conversation.messages import SystemMessage
from warren.conversation.options import ModelOptions, OutputWish
from warren.conversation.usage import Usage
from warren.models.model import Files, ModelChoice
from warren.models.tools import Tool, ToolSpec
from warren.reports.ledger import Charge
from warren.settings.config import Limits, RetryPolicy


@define(eq=False)
class TurnSettings:
    """The settings of a turn. Turns that bring no options share one object, as do sessions with the same settings.

    Attributes:
        candidates: the models in the order in which they take over.
        choice: the first of them, which is called unless another one takes over.
        route: the shared route of turns with one model; a turn with several has a route of its own.
        options: the options of each model call.
        tools: the tools by name.
        specs: the tools as the model sees them.
        gates: the gates of the tool calls; None if no call waits or is refused.
        budget: the limits of the turn.
        session_budget: the limits of the session over all its turns.
        retry: the retries of failed model calls.
        limits: the bounds of the runtime.
        tool_threads: bounds the sync tools of the whole runtime.
        compacts: whether compaction is on.
        lessons: the windows and answer limits that refusals have told.
        output: the schema of the answer; None if it stays a text.
        counters: the counts of all sessions, for the metrics.
        storage: the store of the runtime, which gets the files of answers and of tools' results.
        completions: makes the completion tokens of tool calls.
        keep_alive: whether messages of peers begin turns after this one; None leaves that as it is.
        keeps_steps: whether each step of the turn is stored before its tool calls begin, and their results before the
            next step.
        decode: makes a value of the output type of the session's agent; None if its answers have none.
        calm: the number of steps up to which no limit can be near, so that none is checked.
        limited: the kinds of the limits that are set.
    """

    candidates: Sequence[Candidate]
    route: Route
    options: ModelOptions
    tools: Mapping[str, Tool]
    specs: tuple[ToolSpec, ...]
    gates: Gates | None
    budget: Budget
    session_budget: Budget
    retry: RetryPolicy
    limits: Limits
    tool_threads: trio.CapacityLimiter
    compacts: bool
    lessons: Lessons
    output: OutputWish | None
    counters: Counters
    storage: Storage
    completions: Completions
    keep_alive: bool | None = None
    keeps_steps: bool = False
    decode: Callable[[Any], object] | None = None
    choice: ModelChoice = attrs.field(init=False)
    calm: float = attrs.field(init=False)
    limited: frozenset[BudgetType] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.choice = self.candidates[0].choice
        self.calm = 0.0 if self.session_budget.limits else self.budget.calm
        self.limited = self.budget.kinds | self.session_budget.kinds


@define(eq=False)
class TurnPlan:
    """The plan of one turn.

    Attributes:
        settings: the settings.
        message: the request for it: its prompt and files, its key and payer, and the place that it was called from.
        route: the models.
        meter: the budgets.
        files: the access of the model to the files of the session.
        charges: gets the tokens of each call, until they are stored in the ledger.
        within: makes the window and the compaction plan anew, for a window that a refusal has told.
        window: the window to keep requests in; None if it is unknown.
        compaction: the settings of compaction; None if it is off.
        seam: what surrounds the turn, its steps and its tool calls.
        guard: keeps the turn from going on without a proved lease; None if no other process can have the session.
        chain: the chain of messages of peers that the turn belongs to; None if the session has no name.
        spending: the count of its tokens against limits; None without a limit.
        await_tools: waits for the MCP servers that were starting, and takes their tools; None if there are none.
        instructs: makes the instructions of the turn; None if they stay as they are.
        hooks: the hooks around the turn; None if there are none.
    """

    settings: TurnSettings
    message: StartTurn | Compact
    route: Route
    meter: Meter
    files: Files
    charges: list[Charge]
    within: Within
    window: Window | None = None
    compaction: CompactionPlan | None = None
    seam: Seam = DIRECT
    guard: Guard | None = None
    chain: Chain | None = None
    spending: Spending | None = None
    await_tools: Callable[[], Awaitable[None]] | None = None
    instructs: Callable[[], Awaitable[SystemMessage]] | None = None
    hooks: HookChain | None = None

    @property
    def ended(self) -> Charge:
        """The entry of the ledger for the end of the turn."""
        return Charge(self.settings.choice.model, turns=1, payer=self.message.payer)

    def charge(self, usage: Usage) -> None:
        """Charge the tokens of a call of the current model of the route."""
        self.meter.usage += usage
        self.charges.append(Charge(self.route.current.choice.model, usage, payer=self.message.payer))
        if self.spending is not None:
            self.spending.spend(usage.total_tokens)
