"""The model and the tools of the simulated world, which do what each prompt says, and remember what they did."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

import warren.structured.check  # noqa: F401 - else the first check of a schema has a thread
from tests.simulation.clock import sleep
from tests.simulation.record import AGAIN, RESULT
from tests.support.models import Emit, reply
from warren.base.errors import ProviderError
from warren.conversation.messages import ContextMessage, Message, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import Restart, Tool, ToolError, ToolOutput, current_call, tool

if TYPE_CHECKING:
    from tests.simulation.world import Node

MARK: Final = re.compile(r"\[(\w+) s(\d+)\.([\d.]+)([^\]]*)\]")
"""The mark in a text: the tenant, the session, the number of the operation, and the script of a prompt.

Behind the number are those of the step and the place of the call, if a model has made the text.
"""
FETCH: Final = "fetch"
"""The tool that clients run; its argument is the id of the call."""
MOST: Final = 5
"""Answers of the model at one place of a script."""
GOOD: Final = 30.0
"""Seconds for which the token of a call is good whose result somebody gives."""
CHILDREN: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "clerk": ("", {}),
    "looker": ("look", {}),
    "payer": ("pay look", {}),
    "orderer": ("order", {}),
    "digger": ("look+dig pay", {}),
    "brewer": ("brew look", {}),
    "boss": ("clerk+payer look", {}),
    "failer": ("refuses", {}),
    "spender": ("look look look", {"budget": {"max_steps": 2}}),
    "napper": ("dig", {"time_limit": 0.5}),
    "sleeper": ("linger", {"time_limit": 6.0}),
    "chief": ("sleeper+clerk", {"time_limit": 4.0}),
}
"""What the children do whose names a script has, and the arguments of the calls that make them."""
BRIEF: Final = {"sleeper": "napper", "chief": "napper"}
"""The children in the place of those that nobody would end, if the process of their parent dies with its turn."""
LONG: Final = 200.0
"""Seconds of work that ends only if somebody ends it: the sessions would not come to rest before."""
WAKE: Final = "wake"
"""The part of a script with which a model has itself woken later."""
SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def marked(tenant: str, session: int | str, number: int | str, script: str = "") -> str:
    """Return the mark of a text."""
    return f"[{tenant} s{session}.{number}{script and f' {script}'}]"


def name_of(text: str) -> str | None:
    """Return the name of an operation whose mark is in a text, such as `s3.17`; None for a text without a mark."""
    found = MARK.search(text)
    return None if found is None else f"s{found[2]}.{found[3]}"


@attrs.define(eq=False)
class Model:
    """Answers as the script of the newest prompt says: one part of the script for each step of the turn."""

    node: "Node"
    kinds: frozenset[str] = frozenset({"image"})

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        world, record = self.node.world, self.node.world.record
        record.request(
            request.session_id, (found[1] for each in request.messages for found in MARK.finditer(_text(each)))
        )
        name, script, step, mark = _place(request.messages)
        record.first_asked.setdefault(name, world.latest)
        await sleep(world.chance.choice((0.0, 0.02, 0.1, 0.3)))
        part = script[step] if step < len(script) else ""
        record.answers[name, step] = asked = record.answers[name, step] + 1
        if asked > MOST:  # a compaction has taken the results away
            part = ""
        if part == "overloaded" and asked == 1:
            raise ProviderError("the model is overloaded", cause="overloaded", retryable=True)
        if part == "refuses":
            raise ProviderError("the model refuses", cause="quota", retryable=False)
        if request.answer_schema is not None:
            return reply(json.dumps({"n": "?" if part == "misfit" else 1}))
        words = f"re {name or 'nothing'}"
        emit(TextPiece(words))
        await sleep(world.chance.choice((0.0, 0.02, 0.1)))
        if not request.tools or part in ("", "overloaded", "misfit"):
            return reply(words)
        again = f"{AGAIN}{asked}" if asked > 1 else ""
        ids = [(f"{name}-{step}-{place}{again}", each) for place, each in enumerate(part.split("+"))]
        return reply(words, *(_call(call_id, each, mark) for call_id, each in ids))


def _call(call_id: str, part: str, mark: re.Match[str] | None) -> ToolUseBlock:
    """Return the call of a part of a script; `mark` is the one of the prompt."""
    if part == FETCH:
        return ToolUseBlock(call_id, part, {"call": call_id})
    if mark is None or not (part in CHILDREN or part == WAKE):
        return ToolUseBlock(call_id, part, {})
    number = f"{mark[3]}.{call_id.partition('-')[2].replace('-', '.').replace(AGAIN, '.')}"
    if part == WAKE:
        return ToolUseBlock(call_id, "wake_me", {"note": marked(mark[1], mark[2], number), "after": "1s"})
    script, options = CHILDREN[part]
    return ToolUseBlock(call_id, "delegate", {"prompt": marked(mark[1], mark[2], number, script), **options})


def _place(messages: Sequence[Message]) -> tuple[str | None, list[str], int, re.Match[str] | None]:
    """Return the name and the script of the newest prompt, the number of steps since, and its mark.

    The prompt that is the result of a call in the background has neither.
    """
    steps = 0
    for message in reversed(messages):
        steps += isinstance(message, ToolResultsMessage)
        found = MARK.search(message.content) if isinstance(message, UserMessage) else None
        if found is not None:
            return name_of(found[0]), found[4].split(), steps, found
        if isinstance(message, UserMessage) and RESULT.match(message.content):
            break
    return None, [], 0, None


def _text(message: Message) -> str:
    return message.content if isinstance(message, UserMessage | ContextMessage) else ""


async def _use(node: "Node", *, least: float = 0.0) -> str:
    call = current_call()
    name = call.name
    node.world.record.run(call, node.name, may_repeat=name in REPEATED, background=name in BACKGROUND)
    await sleep(least + node.world.chance.choice((0.0, 0.0, 0.05, 0.2)))
    return f"{call.name} done"


async def look(*, node: Any) -> str:
    """Look around: it may run again."""
    return await _use(node)


async def pay(*, node: Any) -> str:
    """Pay: whether it ran is reported."""
    return await _use(node)


async def order(*, node: Any) -> str:
    """Order: somebody is asked before it runs again."""
    return await _use(node)


async def dig(*, node: Any) -> str:
    """Dig for a while."""
    return await _use(node, least=0.7)


async def linger(*, node: Any) -> str:
    """Work until somebody ends it."""
    return await _use(node, least=LONG)


async def _hand_over(node: "Node", expires: float) -> ToolOutput:
    call = current_call()
    token = call.token(expires=expires)
    node.world.record.tokens[call.session_id, call.call_id] = token
    await _use(node)
    return ToolOutput.later(token)


async def hire(*, node: Any) -> ToolOutput:
    """Have somebody else do the work: it may run again."""
    return await _hand_over(node, GOOD)


async def lend(*, node: Any) -> ToolOutput:
    """Lend, and get it back from outside: whether it ran is reported."""
    return await _hand_over(node, GOOD)


async def forget(*, node: Any) -> ToolOutput:
    """Have somebody do the work who forgets it."""
    return await _hand_over(node, 2.0)


async def play(*, node: Any) -> str:
    """Play: whether it ran is reported. Only this one is ever allowed for a session."""
    return await _use(node)


async def rear(*, node: Any) -> str:
    """Rear something in the background: it may run again."""
    return await _use(node, least=0.3)


async def brew(*, node: Any) -> str:
    """Brew in the background: whether it ran is reported."""
    return await _use(node, least=0.3)


async def bake(*, node: Any) -> str:
    """Bake in the background: somebody is asked before it runs again."""
    return await _use(node)


async def post(*, node: Any) -> ToolOutput:
    """Have somebody else do the work in the background: it may run again."""
    return await _hand_over(node, GOOD)


async def ship(*, node: Any) -> ToolOutput:
    """Have somebody else do the work in the background: whether it ran is reported."""
    return await _hand_over(node, GOOD)


async def drop(*, node: Any) -> ToolOutput:
    """Have somebody do the work in the background who forgets it."""
    return await _hand_over(node, 2.0)


async def fall(*, node: Any) -> str:
    """Fall down."""
    await _use(node)
    raise ToolError("it fell")


RESTARTS: Final[Mapping[Any, Restart]] = {
    look: "replay",
    pay: "report",
    order: "ask",
    dig: "report",
    linger: "report",
    play: "report",
    fall: "replay",
    hire: "replay",
    lend: "report",
    forget: "replay",
    rear: "replay",
    brew: "report",
    bake: "ask",
    post: "replay",
    ship: "report",
    drop: "replay",
}
BACKGROUND: Final = {each.__name__ for each in (rear, brew, bake, post, ship, drop)}
REPEATED: Final = {each.__name__ for each, restart in RESTARTS.items() if restart == "replay"}
TOOLS: Final = [
    (tool(restart=restart, background=each.__name__ in BACKGROUND)(partial(each, node=None)), each)
    for each, restart in RESTARTS.items()
]


def tools_of(node: "Node") -> Sequence[Tool]:
    """Return the tools of a process."""
    return [attrs.evolve(made, call=partial(function, node=node)) for made, function in TOOLS]
