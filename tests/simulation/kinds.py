"""The operations that users carry out: each is a row of one table, by its method and what is special about it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, cast

import attrs
import trio

from tests.simulation.clients import Client, leave_and_come_back
from tests.simulation.followers import Follower, Sight
from tests.simulation.outside import Giver, decide
from tests.simulation.servers import BRIEF, SCHEMA, name_of
from tests.simulation.users import Act, GoneError, Prompt, User, call, tried
from tests.support.runtime import supervisor_of
from warren.base.errors import InvalidParamsError, SessionNotRunningError, WarrenError
from warren.base.signatures import signed_headers
from warren.calls.facade import RuntimeService, SessionService
from warren.conversation.attachments import File
from warren.conversation.budget import UNLIMITED, Budget
from warren.conversation.categories import Gates
from warren.conversation.completion import CompletionKey, CompletionToken
from warren.conversation.inputs import Input
from warren.conversation.messages import UserMessage
from warren.conversation.options import CompactionConfig
from warren.conversation.peers import Peer
from warren.conversation.triggers import Delivered, SignedCall
from warren.conversation.views import SessionView, TurnResult

Carry = Callable[[User], Awaitable[None]]
BEHIND: Final = 10_000
"""The number of an operation that comes from another one is larger by this."""
ASK: Final = Gates(callback="ask")
PICTURE: Final = b"\x89PNG\r\n\x1a\n" + bytes(24)


@attrs.frozen
class Kind:
    """A kind of operations.

    Attributes:
        carry_out: carries one out.
        errors: codes and causes of the errors that it may end with, also while nothing is out of order.
    """

    carry_out: Carry
    errors: frozenset[str] = frozenset()


KINDS: Final[dict[str, Kind]] = {}


def kind(name: str, *errors: str) -> Callable[[Carry], Carry]:
    """Add a kind to the table: the name of its method, and what is special about it."""

    def add(carry_out: Carry) -> Carry:
        KINDS[name] = Kind(carry_out, frozenset(errors))
        return carry_out

    return add


# -- sessions are made

CREATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "empty under a key": {},
    "with labels and a title": {"labels": {"made": "so"}, "title": "a title"},
    "with instructions": {"system_prompt": "Be kind."},
    "with a small context": {"compaction": CompactionConfig(40, recent_turn_budget=0, min_turns_between_compactions=0)},
    "with a budget under a key": {"budget": Budget(max_steps=40, max_tokens=10_000)},
    "with turns that are stored at their end": {"durability": "turn"},
    "with some tools": {"tools": ("look", "pay", "order", "dig", "fall", "hire", "rear", "post", "play", "delegate")},
}


async def create(user: User, *, keyed: bool, script: str | None = None, **options: Any) -> None:
    """Make the session; if its end is not known without a key, make another one with a key."""
    told, peer = user.told, Peer(user.told.peer, tuple(other.peer for other in user.others), keep_alive=True)
    options |= {"prompt": None if script is None else user.text(script), "peer": peer}
    told.durable = options.get("durability") != "turn"
    prompt = Prompt(user.name, trio.current_time(), keyed)
    if keyed:
        request = user.keyed("create", call("create_session", idempotency_key=f"c{user.number}", **options))
    else:
        request = user.once(call("create_session", **options))
    made = await tried(request)
    session_id = made.session_id if not isinstance(made, GoneError) else None
    if session_id is None:
        empty = call("create_session", prompt=None, idempotency_key=f"a{user.number}")
        session_id = (await user.keyed("create anew", empty)).session_id
    elif script is not None:
        prompt.end(made)
        told.prompts[user.name] = prompt
    told.session_id = session_id
    user.world.record.tenants[session_id] = told.tenant
    if isinstance(made, WarrenError | GoneError):
        raise made


for _name, _options in CREATIONS.items():
    KINDS[f"session/create {_name}"] = Kind(partial(create, keyed="key" in _name, **_options))
KINDS["session/create with a prompt"] = Kind(partial(create, keyed=False, script=""))
KINDS["session/create with a prompt under a key"] = Kind(partial(create, keyed=True, script="pay"))
MAKING: Final = tuple(KINDS)


# -- turns


@attrs.frozen
class Turn:
    """A way to run a turn.

    Attributes:
        script: what the model does.
        mode: the mode.
        keyed: whether the prompt has a key.
        options: the options of the turn.
        decision: what is decided about the calls that wait for approval: "allow", "deny", or "both" at once; "remember"
            allows the tool of the first one for the session; "before" is for a tool that was allowed so. None for none.
        giver: gives the results of calls from outside; None for nobody.
        patience: seconds after which the user gives up, and asks again; None for a patient one.
        askers: users that send it at the same time.
        behind: prompts that are sent behind it, so that several wait.
    """

    script: str = ""
    mode: str = "queue"
    keyed: bool = True
    options: Mapping[str, Any] = attrs.field(factory=dict)
    decision: str | None = None
    giver: Giver | None = None
    patience: float | None = None
    askers: int = 1
    behind: int = 0


TURNS: Final[Mapping[str, Turn]] = {
    "busy": Turn(mode="busy", keyed=False),
    "busy with a tool": Turn("pay", "busy", keyed=False),
    "busy with an approval": Turn("pay", "busy", keyed=False, options={"approvals": ASK}, decision="allow"),
    "busy with options": Turn(mode="busy", keyed=False, options={"temperature": 0.5, "max_tokens": 100}),
    "queue": Turn(keyed=False),
    "queue with a tool": Turn("pay", keyed=False),
    "steer": Turn(mode="steer", keyed=False),
    "steer with a tool": Turn("look", "steer", keyed=False),
    "queue under a key": Turn("dig", behind=3),
    "steer under a key": Turn(mode="steer"),
    "steer under a key with a tool": Turn("pay", "steer"),
    "under a key with two askers": Turn("pay", askers=2),
    "under a key by one who gives up": Turn("dig", patience=0.2),
    "with a tool that may run again": Turn("look"),
    "with a tool that is reported": Turn("pay"),
    "with a tool that is asked about": Turn("order"),
    "with a slow tool": Turn("dig"),
    "with a tool that fails": Turn("fall"),
    "with an unknown tool": Turn("fly"),
    "with two calls at once": Turn("pay+dig"),
    "with three steps": Turn("look pay order"),
    "with two calls in two steps": Turn("look+pay dig+order"),
    "with a call that is allowed": Turn("pay", options={"approvals": ASK}, decision="allow"),
    "with a call that is allowed and denied": Turn("pay look", options={"approvals": ASK}, decision="both"),
    "with a call that is denied": Turn("pay", options={"approvals": ASK}, decision="deny"),
    "with a call that nobody decides about": Turn("pay", options={"approvals": ASK}),
    "with a result from outside": Turn("hire", giver=Giver()),
    "with a late result from outside": Turn("lend", giver=Giver(after=1.5)),
    "with a result from outside given twice": Turn("hire", giver=Giver(0.2, ("done", "done"))),
    "with two results from outside": Turn("lend", giver=Giver(0.2, ("done", "undone"))),
    "with a result from outside after a kill": Turn("hire", giver=Giver(0.3, kills=True)),
    "with a result from outside at the moment of a kill": Turn("lend look", giver=Giver(kills=True)),
    "with a result from outside after a takeover": Turn("lend", giver=Giver(3.5, kills=True)),
    "with a result from outside that nobody gives": Turn("forget"),
    "with results from outside and from within": Turn("hire+dig lend+forget", giver=Giver(0.5)),
    "with a result from outside that is stored at its end": Turn(
        "hire look", giver=Giver(0.3), options={"durability": "turn"}
    ),
    "with a call in the background": Turn("rear"),
    "with a call in the background that is reported": Turn("brew look"),
    "with a call in the background that is asked about": Turn("bake"),
    "with calls in the background and others": Turn("rear+look+brew dig+bake"),
    "with a call in the background that is allowed": Turn("rear", options={"approvals": ASK}, decision="allow"),
    "with a call in the background that is stored at its end": Turn(
        "rear+post look", giver=Giver(0.3), options={"durability": "turn"}
    ),
    "with a result from outside in the background": Turn("post", giver=Giver()),
    "with a late result from outside in the background": Turn("ship", giver=Giver(after=1.5)),
    "with a result from outside in the background given twice": Turn("post", giver=Giver(0.2, ("done", "done"))),
    "with two results from outside in the background": Turn("ship+post", giver=Giver(0.2, ("done", "undone"))),
    "with a result from outside in the background after a kill": Turn("post", giver=Giver(0.3, kills=True)),
    "with a result from outside in the background at the moment of a kill": Turn("ship look", giver=Giver(kills=True)),
    "with a result from outside in the background after a takeover": Turn("ship", giver=Giver(3.5, kills=True)),
    "with a result from outside in the background that nobody gives": Turn("drop"),
    "with a model that is overloaded once": Turn("overloaded"),
    "with a tool and an overloaded model": Turn("pay overloaded"),
    "with data": Turn(options={"output_schema": SCHEMA}),
    "with data after a tool": Turn("pay", options={"output_schema": SCHEMA}),
    "with a file": Turn(options={"attachments": (File(PICTURE, name="a.png"),)}),
    "with another model": Turn("pay", options={"model": "other", "provider": "test"}),
    "that is stored at its end": Turn("pay look", options={"durability": "turn"}),
    "that is stored step by step": Turn("look pay dig", options={"durability": "step"}),
    "with a child": Turn("clerk"),
    "with a child and two askers": Turn("digger", askers=2),
    "with three children at once": Turn("clerk+digger+brewer", behind=2),
    "with a child that delegates itself": Turn("boss look"),
    "with children whose tools may run again, are reported and asked about": Turn("looker+payer+orderer"),
    "with children and tools": Turn("digger+pay clerk+look"),
    "with children that fail": Turn("failer+spender clerk"),
    "with a child that takes too long": Turn("sleeper+clerk"),
    "with a grandchild that takes too long": Turn("chief look"),
    "with a child that is stored at its end": Turn("digger look", options={"durability": "turn"}),
    "with children and a budget": Turn("digger+boss look", options={"budget": Budget(max_steps=16)}),
    "with a reminder": Turn("wake pay"),
    "with two reminders and a child": Turn("wake+clerk wake"),
    "with a budget that lasts": Turn("pay", options={"budget": Budget(max_steps=5, max_tool_calls=3)}),
}
FAILING: Final[Mapping[str, tuple[Turn, str]]] = {
    "with a model that refuses": (Turn("refuses"), "quota"),
    "with a model that refuses after a tool": (Turn("pay refuses"), "quota"),
    "with data that do not fit": (Turn("misfit misfit misfit", options={"output_schema": SCHEMA}), "structured_output"),
    "with a budget of one step": (Turn("pay look", options={"budget": Budget(max_steps=1)}), "steps"),
    "with children and a small budget": (Turn("boss+payer look", options={"budget": Budget(max_steps=6)}), "steps"),
    "with a budget of one call": (Turn("pay pay pay", options={"budget": Budget(max_tool_calls=1)}), "tool_calls"),
}


async def turn(user: User, wanted: Turn) -> None:
    """Run a turn."""
    user.told.durable &= wanted.options.get("durability") != "turn"
    prompt = user.told.prompts[user.name] = Prompt(user.name, trio.current_time(), wanted.keyed)
    script = wanted.script
    for name, brief in BRIEF.items() if not user.told.durable else ():
        script = script.replace(name, brief)
    options = {"session_id": user.session_id, "prompt": user.text(script), "mode": wanted.mode} | dict(wanted.options)
    if (steps := options.get("budget", UNLIMITED).max_steps) is not None:
        user.told.budgets[user.name] = steps
    if "approvals" in wanted.options and wanted.decision in ("deny", None):
        user.told.forbidden.append(user.name)
    key = f"k{user.number}"
    act: Act[TurnResult] = call("start_turn", idempotency_key=key if wanted.keyed else None, **options)
    async with trio.open_nursery() as helpers:
        if wanted.decision is not None:
            helpers.start_soon(decide_on, user, wanted.decision, prompt)
        if wanted.giver is not None:
            helpers.start_soon(wanted.giver.serve, user, prompt)
        if wanted.behind:
            helpers.start_soon(line_up, user, wanted.behind)
        for _ in range(1, wanted.askers):
            helpers.start_soon(tried, user.keyed(key, act))
        if wanted.patience is not None:
            with trio.move_on_after(wanted.patience):
                await tried(user.keyed(key, act))
        outcome = await tried(user.keyed(key, act) if wanted.keyed else user.once(act))
        prompt.end(outcome)
    if not isinstance(outcome, TurnResult):
        raise outcome


async def line_up(user: User, prompts: int) -> None:
    """Send some more prompts one after the other, without waiting for their ends, and look at the inbox then."""
    async with trio.open_nursery() as askers:
        for place in range(1, prompts + 1):
            await trio.sleep(0.05)
            asker = attrs.evolve(user, number=BEHIND * place + user.number)
            askers.start_soon(tried, turn(asker, Turn()))
        await trio.sleep(0.1)
        await tried(inputs(user))


DECISIONS: Final[Mapping[str, Sequence[str]]] = {
    "allow": ("allow",),
    "remember": ("allow",),
    "deny": ("deny",),
    "both": ("allow", "deny"),
    "before": (),
}


async def decide_on(user: User, decision: str, prompt: Prompt) -> None:
    """Decide about the calls of a turn that wait for approval, as soon as they do."""
    remember, served = decision == "remember", set[str]()
    async with trio.open_nursery() as deciders:
        while prompt.ended is None and not (remember and served):
            await trio.sleep(0.2)
            view = await tried(user.once(call("read", session_id=user.session_id)))
            waiting = view.state.pending_approvals if isinstance(view, SessionView) else ()
            mine = [each.call_id for each in waiting if each.call_id.startswith(f"{user.name}-")]
            for call_id in [each for each in mine if each not in served][: 1 if remember else None]:
                served.add(call_id)
                for each in DECISIONS[decision]:
                    deciders.start_soon(partial(decide, user, call_id, each, remember=remember))


async def allow_for_session(user: User) -> bool:
    """Run a turn whose tool is allowed for the session; return whether that was taken for certain."""
    outcome = await tried(turn(user, Turn("play+play play", options={"approvals": ASK}, decision="remember")))
    decided = {call_id: given for call_id, given in user.told.decided.items() if call_id.startswith(f"{user.name}-")}
    taken = [call_id for call_id, given in decided.items() if (("allow", None) in given and user.told.durable)]
    for call_id in taken:  # those of an earlier step may have waited in vain before
        user.told.allowed += [f"{user.name}-{step}-" for step in range(int(call_id.split("-")[1]), 2)]
    if isinstance(outcome, WarrenError):
        raise outcome
    return bool(taken)


@kind("turn/start with a tool that is allowed for the session")
async def allowed_before(user: User) -> None:
    """Allow a tool for the session, and run a turn with it about whose calls nobody decides."""
    if await allow_for_session(user):
        asker = attrs.evolve(user, number=BEHIND + user.number)
        user.told.allowed.append(f"{asker.name}-")
        await turn(asker, Turn("play", options={"approvals": ASK}, decision="before"))


@kind("session/label with a tool that is asked about again")
async def ask_again(user: User) -> None:
    """Allow a tool for the session, take that back, and run a turn with it about whose calls nobody decides."""
    user.told.forgotten += 1
    if await allow_for_session(user):
        await label(user, ask_again=("play",))
        remembered, asker = user.told.remembered, attrs.evolve(user, number=BEHIND + user.number)
        outcome = await tried(turn(asker, Turn("play", options={"approvals": ASK})))
        if user.told.remembered != remembered:  # somebody else has allowed it meanwhile
            user.told.forbidden.remove(asker.name)
        if isinstance(outcome, WarrenError):
            raise outcome


for _name, _turn in TURNS.items():
    KINDS[f"turn/start {_name}"] = Kind(partial(turn, wanted=_turn), frozenset({"SESSION_BUSY"}))
for _name, (_turn, _cause) in FAILING.items():
    KINDS[f"turn/start {_name}"] = Kind(partial(turn, wanted=_turn), frozenset({_cause}))


# -- prompts for later


async def later(user: User, **options: Any) -> None:
    """Send a prompt that no turn takes before its time."""
    key, due = f"k{user.number}", _now(user) + timedelta(seconds=user.chance.uniform(0.2, 4))
    prompt = user.told.prompts[user.name] = Prompt(user.name, trio.current_time(), keyed=True)
    given = {"prompt": user.text("pay"), "mode": "queue", "idempotency_key": key, "not_before": due, **options}
    outcome = await tried(user.keyed(key, call("start_turn", session_id=user.session_id, **given)))
    prompt.end(outcome)
    if not isinstance(outcome, TurnResult):
        raise outcome


KINDS["turn/start with a prompt for later"] = Kind(later)


@kind("session/withdraw a prompt for later", "INVALID_PARAMS", "cancelled")
async def withdraw_later(user: User) -> None:
    """Take a prompt back before its time, which is far."""
    async with trio.open_nursery() as askers:
        far = _now(user) + timedelta(days=9)
        askers.start_soon(tried, later(user, not_before=far))
        while (prompt := user.told.prompts.get(user.name)) is None or prompt.ended is None:
            await trio.sleep(0.2)
            found = await tried(user.read(call("inputs", session_id=user.session_id)))
            for each in found if isinstance(found, Sequence) else ():
                if name_of(each.text) == user.name:
                    user.told.taken_back.add(each.text)
                    withdrawn = call("withdraw", session_id=user.session_id, input_id=each.input_id)
                    if not isinstance(await tried(user.once(withdrawn)), WarrenError | GoneError):
                        user.told.withdrawn.append(user.name)


# -- children, and their parents


@kind("session/delegate", "SESSION_NOT_FOUND", "BUDGET_EXHAUSTED", "CAPACITY_EXCEEDED", "children")
async def delegate(user: User) -> None:
    """Have the session's child made, by two requests under one key, and wait for the end of its work, twice."""
    act = call("delegate", session_id=user.session_id, prompt=user.text(), idempotency_key=f"p{user.number}")
    child = await user.send(act, again=True, changes=True)
    if (again := await user.send(act, again=True, changes=True)) != child:
        user.world.record.blame(f"the key of {user.name} has made the children {child} and {again}")
    # Not sent again after each stop: that may be the end of the work, which the child tells whenever it is asked.
    wait = call("wait_turn", session_id=child)
    ends = [await tried(user.send(wait, again=True, changes=True)) for _ in range(2)]
    lost = any(isinstance(end, SessionNotRunningError) for end in ends)
    if lost or (ends[0] != ends[1] and all(isinstance(end, TurnResult) for end in ends)):
        user.world.record.blame(f"the child {child} of {user.name} has ended as {ends[0]!r} and as {ends[1]!r}")


async def with_child(user: User, script: str, act: Callable[[User, str], Awaitable[Any]]) -> None:
    """Run a turn whose model delegates work, and do something once there is a child."""
    record, asker = user.world.record, attrs.evolve(user, number=BEHIND + user.number)
    outcomes: list[Any] = []

    async def run() -> None:
        outcomes.append(await tried(turn(asker, Turn(script))))

    async with trio.open_nursery() as askers:
        askers.start_soon(run)
        while asker.name not in user.told.prompts or user.told.prompts[asker.name].ended is None:
            mine = [
                session_id
                for session_id, place in record.children.items()
                if place.session_id == user.session_id and (place.call_id or "").startswith(f"{asker.name}-")
            ]
            if mine:
                await tried(act(user, mine[0]))
                break
            await trio.sleep(0.05)
    for outcome in outcomes:
        if isinstance(outcome, WarrenError):
            raise outcome


async def end_child(user: User, child: str, method: str) -> None:
    """Interrupt, archive or delete a child."""
    user.told.touched.add(child)
    await trio.sleep(user.chance.choice((0.0, 0.1, 0.5)))
    await user.once(call(method, session_id=child))


for _name, _method in {
    "turn/interrupt": "interrupt",
    "session/archive": "archive",
    "session/delete": "delete",
}.items():
    _act = partial(end_child, method=_method)
    KINDS[f"{_name} of a child"] = Kind(partial(with_child, script="sleeper+clerk look", act=_act))


async def end_parent(user: User, _child: str, ends: Carry) -> None:
    """Interrupt, archive or delete a parent."""
    await trio.sleep(user.chance.choice((0.0, 0.1, 0.5)))
    await ends(user)


@kind("turn/interrupt of a parent")
async def interrupt_parent(user: User) -> None:
    """Interrupt the turn of a parent, whose children and theirs have nobody to work for then."""
    await with_child(user, "sleeper+chief+clerk", partial(end_parent, ends=interrupt))


@kind("session/archive of a parent")
async def archive_parent(user: User) -> None:
    """Archive a parent: its children and theirs are archived too."""
    await with_child(user, "sleeper+chief+clerk", partial(end_parent, ends=archive))


@kind("session/delete of a parent")
async def delete_parent(user: User) -> None:
    """Delete a parent: its children and theirs are deleted too."""
    await with_child(user, "sleeper+chief+clerk", partial(end_parent, ends=delete))


async def client_turn(user: User, *, leaves: bool, waits: bool = False) -> None:
    """Run a turn with a tool that its client runs."""
    if user.told.tenant != "default":
        return
    prompt = user.told.prompts[user.name] = Prompt(user.name, trio.current_time(), keyed=True)
    key, text = f"k{user.number}", user.text("fetch look+fetch")
    user.told.asked[key] = call(
        "start_turn", session_id=user.session_id, prompt=text, mode="queue", idempotency_key=key
    )
    if leaves:
        outcome = await tried(leave_and_come_back(user, key, text, waits=waits))
    else:
        outcome = await tried(Client(user, user.name).turn(key, text))
    prompt.end(outcome)
    assert not isinstance(outcome, GoneError)
    user.told.end(key, outcome)
    if isinstance(outcome, WarrenError):
        raise outcome


KINDS["turn/start with a tool of a client"] = Kind(partial(client_turn, leaves=False))
KINDS["turn/start with a tool of a client that goes away"] = Kind(partial(client_turn, leaves=True))
KINDS["turn/wait with a tool of a client that went away"] = Kind(partial(client_turn, leaves=True, waits=True))


@kind("turn/start under the key of another prompt")
async def same_key(user: User) -> None:
    """Send two prompts under one key: the second one gets the end of the first."""
    key, request = f"k{user.number}", partial(call, "start_turn", session_id=user.session_id, mode="queue")
    prompt = user.told.prompts[user.name] = Prompt(user.name, trio.current_time(), keyed=True)
    prompt.end(await tried(user.keyed(key, request(prompt=user.text(), idempotency_key=key))))
    await user.keyed(key, request(prompt="something else", idempotency_key=key))


@kind("turn/start busy under a key", "INVALID_PARAMS")
async def busy_key(user: User) -> None:
    """Send a prompt under a key that cannot wait."""
    await user.read(call("start_turn", session_id=user.session_id, prompt="no", mode="busy", idempotency_key="no"))


@kind("turn/interrupt", "SESSION_NOT_RUNNING", "interrupt_timeout")
async def interrupt(user: User) -> None:
    """Interrupt the running turn."""
    user.told.disturbed = True
    await user.once(call("interrupt", session_id=user.session_id))


@kind("turn/wait", "SESSION_NOT_RUNNING")
async def wait(user: User) -> None:
    """Wait for the end of the turn that runs, whatever that is."""
    await tried(user.read(call("wait_turn", session_id=user.session_id)))


@kind("tool/approve a call that does not wait", "INVALID_PARAMS", "SESSION_NOT_RUNNING")
async def approve(user: User) -> None:
    """Decide about a call that is not there."""
    await user.once(call("approve_tool", session_id=user.session_id, call_id="nobody", decision="allow"))


@kind("session/compact", "SESSION_BUSY", "compaction_failed", "cancelled")
async def compact(user: User) -> None:
    """Compact the context."""
    await user.once(call("compact", session_id=user.session_id))


@kind("session/compact with instructions", "SESSION_BUSY", "compaction_failed", "cancelled")
async def compact_so(user: User) -> None:
    """Compact the context in a certain way."""
    await user.once(call("compact", session_id=user.session_id, instructions="Be short."))


# -- the inbox


async def inject(user: User, key: str | None = None) -> bool:
    """Give the model a text that is no prompt."""
    act: Act[bool] = call("inject_context", session_id=user.session_id, text=user.text(), idempotency_key=key)
    fresh = await (user.once(act) if key is None else user.send(act, again=True, changes=True))
    if user.name not in user.told.contexts:
        user.told.contexts.append(user.name)
    return fresh


KINDS["session/inject_context"] = Kind(inject)  # type: ignore[arg-type] # the result is for the others


@kind("session/inject_context under a key")
async def inject_key(user: User) -> None:
    """Inject a text under a key."""
    await inject(user, f"i{user.number}")


@kind("session/inject_context twice")
async def inject_twice(user: User) -> None:
    """Inject a text twice under one key: the second one is not taken."""
    await inject(user, f"i{user.number}")
    if await inject(user, f"i{user.number}") and not user.world.clustered:  # the answer of a node does not say it
        user.world.record.blame(f"{user.name} was taken twice")


@kind("session/inputs")
async def inputs(user: User) -> None:
    """Look at the inputs that wait.

    A process that shares a file shows one that a turn of another process has taken, until that turn is stored.
    """

    async def look(service: SessionService) -> tuple[Sequence[Input], bool]:
        found = await service.inputs(user.session_id)
        return found, user.world.clustered or supervisor_of(service).has_current(user.session_id)

    found, exact = await user.read(look)
    if exact:
        user.told.queues.append(
            [
                name
                for each in found
                if each.kind == "queue" and each.not_before is None and (name := name_of(each.text)) is not None
            ]
        )


@kind("session/withdraw", "INVALID_PARAMS")
async def withdraw(user: User) -> None:
    """Take the newest input back."""
    found = await user.read(call("inputs", session_id=user.session_id))
    user.told.disturbed = True
    user.told.taken_back.update(each.text for each in found[-1:])
    await user.once(call("withdraw", session_id=user.session_id, input_id=found[-1].input_id if found else "none"))
    user.told.withdrawn.append(name_of(found[-1].text))


# -- peers


async def send_to(user: User, **options: Any) -> None:
    """Send a message to the session of some other place."""
    to = user.chance.choice([other.peer for other in user.others if other.tenant == user.told.tenant])
    options = {"session_id": user.session_id, "to": to, "body": user.text()} | options
    await user.once(call("send_message", **options))


KINDS["peer/send a message"] = Kind(send_to, frozenset({"INVALID_PARAMS"}))
KINDS["peer/send a request"] = Kind(partial(send_to, kind="request"), frozenset({"INVALID_PARAMS"}))
KINDS["peer/send a response to no request"] = Kind(
    partial(send_to, kind="response", request_id="none", status="ok"), frozenset({"INVALID_PARAMS"})
)
KINDS["peer/send to nobody"] = Kind(partial(send_to, to="nobody"), frozenset({"INVALID_PARAMS"}))


@kind("peer/send to another tenant", "INVALID_PARAMS")
async def send_across(user: User) -> None:
    """Send a message to a session of another tenant, which nobody finds."""
    strangers = [other.peer for other in user.others if other.tenant != user.told.tenant]
    await send_to(user, to=user.chance.choice(strangers))
    user.world.record.blame(f"{user.name} reached another tenant")


# -- sessions are read


async def look_at(user: User, method: str, **options: Any) -> None:
    """Ask for something about the session."""
    await user.read(call(method, session_id=user.session_id, **options))


KINDS["session/read"] = Kind(partial(look_at, method="read"))
KINDS["session/resume"] = Kind(partial(look_at, method="resume"))
KINDS["session/context"] = Kind(partial(look_at, method="context"))
KINDS["session/history of some positions"] = Kind(partial(look_at, method="history", offset=1, limit=2))
KINDS["session/attachment that is not there"] = Kind(
    partial(look_at, method="attachment", sha256="0" * 64), frozenset({"INVALID_PARAMS"})
)
KINDS["peer/list"] = Kind(partial(look_at, method="peers"))


@kind("session/history")
async def history(user: User) -> None:
    """Read the whole history."""
    asked = trio.current_time()
    page = await user.read(call("history", session_id=user.session_id, limit=1000))
    names = (name_of(each.message.content) for each in page.messages if isinstance(each.message, UserMessage))
    user.told.seen.append((asked, frozenset(name for name in names if name is not None)))


async def list_some(user: User, **options: Any) -> None:
    """List sessions: those of other tenants are not among them."""
    page = await user.read(call("list", **options))
    meet(user, [each.session_id for each in page.sessions])


def meet(user: User, session_ids: list[str]) -> None:
    """Blame a list for sessions of other tenants."""
    for session_id in session_ids:
        if user.world.record.tenants.get(session_id, user.told.tenant) != user.told.tenant:
            user.world.record.blame(f"{user.name} met a session of another tenant")


KINDS["session/list"] = Kind(list_some)
KINDS["session/list by labels"] = Kind(partial(list_some, labels={"made": "so"}))
KINDS["session/list with archived ones"] = Kind(partial(list_some, include_archived=True))
KINDS["session/list of a page"] = Kind(partial(list_some, offset=1, limit=2))


@kind("events of a session from the first one")
async def follow(user: User) -> None:
    """Follow the session from its first event for a while."""
    await _follow(user, 0)


@kind("events of a session from now on")
async def follow_newest(user: User) -> None:
    """Follow the session from its next event for a while."""
    await _follow(user, None)


async def _follow(user: User, after_seq: int | None) -> None:
    if user.told.tenant != "default":
        return
    sight, node = Sight(user.name, after_seq, after_seq), await user.node()
    user.told.sights.append(sight)
    with node.visit(), trio.move_on_after(0.5):
        await Follower(user.world, user.session_id, sight).read(node.service, stays=True)


@kind("events of a session ahead of its log", "INVALID_PARAMS")
async def follow_ahead(user: User) -> None:
    """Follow the session from an event on that is not there."""

    async def act(service: SessionService) -> None:
        async with service.subscribe(user.session_id, after_seq=10**9):
            pass

    await user.read(act)
    user.world.record.blame(f"{user.name} followed events that are not there")


@kind("changes of sessions")
async def watch(user: User) -> None:
    """Watch the list of sessions for a moment."""

    async def act(service: SessionService) -> None:
        async with service.watch() as reader:
            with trio.move_on_after(0.2):
                async for changes in reader:
                    meet(user, [each.session_id for each in changes.sessions])

    await user.read(act)


# -- sessions are changed and ended


async def label(user: User, **options: Any) -> None:
    """Change the labels."""
    await user.read(call("label", session_id=user.session_id, **options))


@kind("session/label")
async def label_new(user: User) -> None:
    """Set a label that nobody removes."""
    name = f"n{user.number}"
    await label(user, labels={name: "there"})
    user.told.labels.append(name)


KINDS["session/label away"] = Kind(partial(label, labels={"made": None}))
KINDS["session/label with a title"] = Kind(partial(label, title="another title"))


async def fork(user: User, at: int | None = None) -> None:
    """Fork the session."""
    view = await user.once(call("fork", session_id=user.session_id, at=at))
    user.told.forks.append(view.state.session_id)
    if at is None:
        user.told.whole.append(view.state.session_id)
    user.world.record.tenants[view.state.session_id] = user.told.tenant


KINDS["session/fork"] = Kind(fork)
KINDS["session/fork of nothing"] = Kind(partial(fork, at=0))
KINDS["session/fork of a beginning"] = Kind(partial(fork, at=2), frozenset({"INVALID_PARAMS"}))
KINDS["session/fork beyond the end"] = Kind(partial(fork, at=10**6), frozenset({"INVALID_PARAMS"}))


@kind("session/archive")
async def archive(user: User) -> None:
    """Archive the session."""
    user.told.leaving = True
    await user.read(call("archive", session_id=user.session_id))
    user.told.over = user.told.over or "archived"


@kind("session/archive during a turn whose process was killed")
async def archive_killed(user: User) -> None:
    """Archive the session before anybody takes the turn up that its process has left open."""
    record, asker = user.world.record, attrs.evolve(user, number=BEHIND + user.number)
    user.told.leaving = True
    async with trio.open_nursery() as askers:
        askers.start_soon(tried, turn(asker, Turn("dig")))
        with trio.move_on_after(3.0):
            mine = f"{asker.name}-"
            while not (found := [each for each in record.runs if each.call_id.startswith(mine)]):  # noqa: ASYNC110 - no event
                await trio.sleep(0.05)
            node = user.world.nodes.get(found[-1].node)
            if node is not None:
                user.note(f"kills {node.name}")
                node.kill()
        outcome = await tried(archive(user))
    if outcome is not None:
        raise outcome


@kind("session/delete", "SESSION_NOT_FOUND")
async def delete(user: User) -> None:
    """Delete the session."""
    user.told.leaving = True
    await user.send(call("delete", session_id=user.session_id), again=True)
    user.told.over = "deleted"


# -- strangers, who find nothing


async def intrude(user: User, method: str, **options: Any) -> None:
    """Ask for a session of another tenant."""
    tenant = "rival" if user.told.tenant == "default" else "default"
    await user.read(call(method, session_id=user.session_id, **options), tenant=tenant)
    user.world.record.blame(f"{method} of {user.name} found a session of another tenant")


INTRUSIONS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "session/read": ("read", {}),
    "session/history": ("history", {}),
    "turn/start": ("start_turn", {"prompt": "let me in", "mode": "queue", "idempotency_key": "in"}),
    "session/inject_context": ("inject_context", {"text": "let me in"}),
    "turn/interrupt": ("interrupt", {}),
    "session/fork": ("fork", {}),
    "session/delete": ("delete", {}),
    "session/label": ("label", {"title": "mine"}),
}
for _name, (_method, _options) in INTRUSIONS.items():
    KINDS[f"{_name} by a stranger"] = Kind(
        partial(intrude, method=_method, **_options), frozenset({"SESSION_NOT_FOUND"})
    )


@kind("tool/complete under a forged token", "INVALID_PARAMS")
async def forge(user: User) -> None:
    """Give a call a result under a token that no tool of this store has got."""
    claims = CompletionToken(user.told.tenant, user.session_id, f"{user.name}-0-0", "key", 2**40)
    await user.read(call("complete_tool", token=CompletionKey(bytes(32)).sign(claims), result="forged"))
    user.world.record.blame(f"{user.name} forged the result of a call")


# -- schedules


def _now(user: User) -> datetime:
    return datetime.fromtimestamp(user.world.now(), UTC)


async def schedule(user: User, **options: Any) -> str:
    """Make a schedule for the session; return its id."""
    given = {"session_id": user.session_id, "idempotency_key": f"p{user.number}", **options}
    made = await user.send(call("create_schedule", **given), again=True, changes=True)
    schedule_id: str = made.schedule_id
    return schedule_id


# A request that takes too long is refused, as its time is over.
@kind("schedule/create once", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def schedule_once(user: User) -> None:
    """Have a prompt sent at a time."""
    at = _now(user) + timedelta(seconds=user.chance.uniform(0.2, 4))
    await schedule(user, prompt=user.text(user.chance.choice(("", "pay"))), at=at)
    user.told.scheduled.append(user.name)


@kind("schedule/create again and again", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def schedule_again(user: User) -> None:
    """Have a prompt sent each second for some seconds."""
    now = _now(user)
    end = now + timedelta(seconds=user.chance.uniform(1, 4))
    await schedule(user, prompt=f"the {user.number}th plant is dry", every="1s", end=end, misfire="all")


@kind("schedule/change", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def schedule_change(user: User) -> None:
    """Have a schedule that was paused go on at another time."""
    far = _now(user) + timedelta(days=9)
    schedule_id = await schedule(user, prompt=user.text(), at=far, paused=True)
    at = _now(user) + timedelta(seconds=user.chance.uniform(0.2, 2))
    changed = await user.send(
        call("change_schedule", schedule_id=schedule_id, at=at, paused=False), again=True, changes=True
    )
    if changed.state == "active":
        user.told.scheduled.append(user.name)


@kind("schedule/delete", "SESSION_NOT_FOUND")
async def schedule_delete(user: User) -> None:
    """Remove a schedule that is not due yet."""
    far = _now(user) + timedelta(days=9)
    schedule_id = await schedule(user, prompt=user.text(), at=far)
    gone = await tried(user.send(call("delete_schedule", schedule_id=schedule_id), again=True, changes=True))
    if isinstance(gone, WarrenError) and "no schedule" not in gone.message:  # sent again, it finds none
        raise gone


# -- triggers


async def trigger(user: User, **options: Any) -> str:
    """Make a trigger for the session; return its id."""
    given = {"prompt": user.text(), "session_id": user.session_id, "idempotency_key": f"p{user.number}", **options}
    made = await user.send(call("create_trigger", **given), again=True, changes=True)
    trigger_id: str = made.trigger_id
    return trigger_id


# The clock of a node may be off by more than a signature may be old.
@kind("trigger/create and its calls", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def trigger_calls(user: User) -> None:
    """Send a signed call to one node after the other until one takes it, and then once more."""
    asked = {"prompt": "{body}", "session_id": user.session_id, "idempotency_key": f"p{user.number}"}
    made = await user.send(call("create_trigger", **asked), again=True, changes=True)
    body = user.text(user.chance.choice(("", "pay"))).encode()
    signed = SignedCall(made.trigger_id, signed_headers(made.secret, user.name, _now(user), body), body)

    async def comes(service: SessionService) -> Delivered:
        return await (await cast("RuntimeService", service).opened(signed)).deliver()

    first = await user.send(comes, again=True, changes=True)
    user.told.scheduled.append(user.name)
    if (again := await user.send(comes, again=True, changes=True)) != first:
        user.world.record.blame(f"the call {user.name} was answered with {first}, and then with {again}")


@kind("trigger/change", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def trigger_change(user: User) -> None:
    """Give a trigger a new secret; its session may be gone by then, and the trigger with it."""
    trigger_id = await trigger(user, paused=True)
    await user.send(
        call("change_trigger", trigger_id=trigger_id, paused=False, rotate_secret=True), again=True, changes=True
    )


@kind("trigger/delete", "SESSION_NOT_FOUND")
async def trigger_delete(user: User) -> None:
    """Remove a trigger."""
    trigger_id = await trigger(user)
    gone = await tried(user.send(call("delete_trigger", trigger_id=trigger_id), again=True, changes=True))
    if isinstance(gone, WarrenError) and "no trigger" not in gone.message:  # sent again, it finds none
        raise gone


# -- webhooks


async def webhook(user: User) -> str:
    """Make a webhook that is told of nothing, as it is paused; return its id."""
    given = {"session_id": user.session_id, "paused": True, "idempotency_key": f"w{user.number}"}
    made = await user.send(call("create_webhook", url="https://localhost/hook", **given), again=True, changes=True)
    webhook_id: str = made.webhook_id
    return webhook_id


@kind("webhook/create", "SESSION_NOT_FOUND")
async def webhook_create(user: User) -> None:
    """Make a webhook: nothing was posted to it, and nothing has failed."""
    webhook_id = await webhook(user)
    with suppress(InvalidParamsError):  # its session was deleted, and the webhook with it
        page = await user.read(call("deliveries", webhook_id=webhook_id))
        if page.deliveries:
            user.world.record.blame(f"the webhook {webhook_id} of {user.name} is paused, and was told of something")


@kind("webhook/change", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def webhook_change(user: User) -> None:
    """Change the events of a webhook."""
    webhook_id = await webhook(user)
    await user.send(call("change_webhook", webhook_id=webhook_id, events=("turn.failed",)), again=True, changes=True)


@kind("webhook/delete", "SESSION_NOT_FOUND")
async def webhook_delete(user: User) -> None:
    """Remove a webhook."""
    webhook_id = await webhook(user)
    gone = await tried(user.send(call("delete_webhook", webhook_id=webhook_id), again=True, changes=True))
    if isinstance(gone, WarrenError) and "no webhook" not in gone.message:  # sent again, it finds none
        raise gone


@kind("delivery/resend", "SESSION_NOT_FOUND", "INVALID_PARAMS")
async def resend(user: User) -> None:
    """Ask for what has failed to be posted again: nothing has."""
    webhook_id = await webhook(user)
    await user.send(call("resend", webhook_id=webhook_id), again=True, changes=True)


# -- the whole service


async def ask(user: User, method: str, **options: Any) -> None:
    """Ask for something about the service."""
    await user.read(call(method, **options))


KINDS["memory/search"] = Kind(
    partial(ask, method="search_memory", query="anything", scope="project"), frozenset({"SESSION_MEMORY_DISABLED"})
)
KINDS["memory/forget"] = Kind(partial(look_at, method="forget_memory"), frozenset({"SESSION_MEMORY_DISABLED"}))
KINDS["audit/list"] = Kind(partial(ask, method="audit"))
KINDS["schedule/list"] = Kind(partial(ask, method="schedules"))
KINDS["webhook/list"] = Kind(partial(ask, method="webhooks"))
KINDS["delivery/list of nothing"] = Kind(
    partial(ask, method="deliveries", webhook_id="none"), frozenset({"INVALID_PARAMS"})
)
KINDS["agents/list"] = Kind(partial(ask, method="agents"))
KINDS["agents/get of nothing"] = Kind(partial(ask, method="agent", name="none"), frozenset({"INVALID_PARAMS"}))
KINDS["trigger/list"] = Kind(partial(ask, method="triggers"))
KINDS["approvals/list"] = Kind(partial(ask, method="approvals"))
KINDS["usage/get"] = Kind(partial(ask, method="usage"))
KINDS["tenants/list"] = Kind(partial(ask, method="tenants"))
KINDS["nodes/list"] = Kind(partial(ask, method="nodes"))
KINDS["nodes/drain without the right"] = Kind(
    partial(ask, method="drain_node", name="anna"), frozenset({"PERMISSION_DENIED"})
)


@kind("store/check", "store_check")
async def check_store(user: User) -> None:
    """Examine the store beside the sessions: nothing in it is damaged."""
    report = await user.read(call("check_store"))
    if not report.healthy:
        user.world.record.blame(f"{user.name} found damage: {report.findings}")


LATER: Final = tuple(name for name in KINDS if name not in MAKING)
