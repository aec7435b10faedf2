"""Sessions that speak to one another: names, trust, inboxes, and what becomes of a message."""

import json
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime, replay, storage_of, supervisor_of, transcript
from warren.actors.protocol import StartTurn
from warren.base.errors import InvalidParamsError
from warren.calls.facade import SessionService
from warren.conversation.budget import Budget
from warren.conversation.categories import Switch, Switches
from warren.conversation.events import RunFailed, RunStarted
from warren.conversation.messages import ContextMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.peers import Peer, PeerInfo
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolContext, ToolError, calling
from warren.settings.config import Config, Limits
from warren.storage.queries import ANY_TENANT, SessionRow, WaitingInputs

pytestmark = pytest.mark.virtual_time
HELLO = "hello"


@attrs.define
class Scripted:
    """A model that calls the tool named in a prompt of JSON, and else says `ok`; `talk` answers each peer's message.

    Attributes:
        offered: the tools of the newest call.
    """

    offered: list[str] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.sleep(1)
        self.offered = [spec.name for spec in request.tools]
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.content.startswith("{"):
            asked = json.loads(last.content)
            return reply("", ToolUseBlock("call-1", asked["tool"], asked["args"]))
        if isinstance(last, UserMessage | ContextMessage) and "ping" in last.content:
            peer = last.content.split("peer ")[1].split(":")[0]
            return reply("", ToolUseBlock("call-1", "send_message", {"to": peer, "body": "ping"}))
        return reply("ok")


async def use(service: SessionService, session_id: str, tool: str, **args: object) -> tuple[str, bool]:
    """Have a session's model use a tool; return what it was told, and whether as an error."""
    await service.start_turn(session_id, json.dumps({"tool": tool, "args": args}))
    results = [message for message in await transcript(service, session_id) if isinstance(message, ToolResultsMessage)]
    return results[-1].results[0].content, results[-1].results[0].is_error


async def started(service: SessionService, session_id: str) -> list[str]:
    """Return the prompts of the turns that began."""
    events = [envelope.event for envelope in await replay(service, session_id)]
    return [event.prompt for event in events if isinstance(event, RunStarted)]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_message_begins_a_turn_of_a_session_that_is_kept_alive(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """It is idle, not busy, and a peer's message begins its turn; a request says how to answer it."""
    async with open_runtime(Scripted(), store=tmp_path if stored else None) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",), keep_alive=True))
        assert not (await service.read(bob)).state.is_active
        told, is_error = await use(service, ann, "send_request", to="bob", intent="count", params={"to": 3})
        assert not is_error
        await trio.sleep(60)
        (prompt,) = await started(service, bob)
        request_id = told.split()[3].rstrip(";")
        assert prompt.startswith(f'Request {request_id} from peer ann: count\nparams: {{"to":3}}')
        assert f'in_reply_to="{request_id}"' in prompt
        answer = {"to": "ann", "in_reply_to": request_id, "status": "ok", "result": "1 2 3"}
        assert await use(service, bob, "send_response", **answer) == ("sent", False)
        assert [each.text for each in await service.inputs(ann)] == [
            f"Response from peer bob to your request {request_id}: ok\n\n1 2 3"
        ]
        await service.start_turn(ann, "and?")
        assert await service.inputs(ann) == ()
        assert ContextMessage(f"Response from peer bob to your request {request_id}: ok\n\n1 2 3", "bob") in (
            await transcript(service, ann)
        )


async def test_a_message_enters_the_running_turn(tmp_path: Path) -> None:
    """While a turn runs a peer's message is read at its next step, and needs no turn of its own."""
    async with open_runtime(Scripted(), store=tmp_path) as service, trio.open_nursery() as nursery:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",), keep_alive=True))
        nursery.start_soon(service.start_turn, bob, "work")
        await trio.sleep(0.5)
        await service.send_message(ann, "bob", HELLO)
        await trio.sleep(60)
        assert await started(service, bob) == ["work"]
        assert ContextMessage("Message from peer ann:\n\nhello", "ann") in await transcript(service, bob)


async def test_trust_is_on_both_sides() -> None:
    """Whoever does not trust, or is not trusted, neither sends nor gets; the list says whom one can reach."""
    model = Scripted()
    async with open_runtime(model) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob", "cat", "dan")))
        await new_session(service, peer=Peer("bob", ("ann",)))
        await new_session(service, peer=Peer("cat"))
        await new_session(service, peer=Peer("eve", ("ann",)))
        assert await service.peers(ann) == (PeerInfo("bob", True), PeerInfo("cat", False), PeerInfo("dan", False))
        for name in ("cat", "dan", "eve"):
            with pytest.raises(InvalidParamsError) as caught:
                await service.send_message(ann, name, HELLO)
            assert caught.value.path == "$.to"
        told, is_error = await use(service, ann, "send_message", to="eve", body="hi")
        assert (told, is_error) == ("to: 'eve' is not trusted; trusted are: bob, cat, dan", True)
        assert model.offered == ["list_peers", "send_message", "send_request", "send_response"]
        alone = await new_session(service)
        await service.start_turn(alone, "hi")
        assert model.offered == []


@pytest.mark.parametrize("stored", [False, True])
async def test_a_peer_ends_while_a_message_comes(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """The sender hears that there is no such peer, not that there is no session: its own is there."""
    async with open_runtime(Scripted(), store=tmp_path if stored else None) as service:
        ann, heard = await new_session(service, peer=Peer("ann", ("bob",))), set[str | None]()
        for steps in range(30):
            bob = await new_session(service, peer=Peer("bob", ("ann",)))
            async with trio.open_nursery() as nursery:
                sent = ask(nursery, service.send_message, ann, "bob", HELLO)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await service.archive(bob)
            if sent.error is not None:
                assert isinstance(sent.error, InvalidParamsError)
                heard.add(sent.error.path)
        assert heard == {"$.to"}


@pytest.mark.parametrize("stored", [False, True])
async def test_names_are_given_once(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Two sessions cannot have one name, until the first is archived."""
    async with open_runtime(Scripted(), store=tmp_path if stored else None) as service:
        first = await new_session(service, peer=Peer("ann"))
        with pytest.raises(InvalidParamsError) as caught:
            await new_session(service, peer=Peer("ann"))
        assert caught.value.path == "$.peer.name"
        await service.archive(first)
        await new_session(service, peer=Peer("ann"))


async def test_messages_survive_a_restart(tmp_path: Path) -> None:
    """A message that was acknowledged is in the inbox of the next process, and begins its turn there."""
    async with open_runtime(Scripted(), store=tmp_path) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",), keep_alive=True))
        await service.drain()  # from here on no turn begins
        await service.send_message(ann, "bob", HELLO)
    async with open_runtime(Scripted(), store=tmp_path) as service:
        await trio.sleep(60)
        assert await started(service, bob) == ["Message from peer ann:\n\nhello"]
        assert (await service.read(bob)).state.message_count == 2


@pytest.mark.parametrize("name", ["send_message", "send_request"])
async def test_a_message_that_is_sent_again_comes_once(tmp_path: Path, name: str) -> None:
    """A call of a dead process that is replayed finds the message that it sent, and tells the same; others send."""
    async with open_runtime(Scripted(), store=tmp_path) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        record = await storage_of(service).read(SessionRow(ann, ANY_TENANT))
        assert record is not None
        tool = supervisor_of(service).comms.tools_of(record, None)[name]
        args = {"to": "bob", "body" if name == "send_message" else "intent": HELLO}

        async def send(number: int) -> str:
            calling.set(ToolContext(ann, 1, number, "any", name, args))
            return str(await tool.call(**args))

        assert tool.restart == "replay"
        told = await send(1)
        assert await send(1) == told
        assert len(await service.inputs(bob)) == 1
        await service.start_turn(bob, "go")
        assert await send(1) == told
        assert not await service.inputs(bob)
        await send(2)
        assert len(await service.inputs(bob)) == 1


async def test_loops_end_by_budget(tmp_path: Path) -> None:
    """Two sessions that answer each other for ever stop when the budget of one of them is used up."""
    config, budget = Config(), Budget(max_steps=6)
    async with open_runtime(Scripted(), store=tmp_path, config=config) as service:
        ids = [
            await new_session(service, peer=Peer(name, (other,), keep_alive=True), budget=budget)
            for name, other in (("ann", "bob"), ("bob", "ann"))
        ]
        await service.send_message(ids[0], "bob", "ping")
        await trio.sleep(600)
        assert service.health().running_turns == 0
        ended = [envelope.event for each in ids for envelope in await replay(service, each)]
        assert [event.cause for event in ended if isinstance(event, RunFailed)].count("budget_exhausted") >= 1
        steps = [len(await transcript(service, each)) for each in ids]
        await trio.sleep(600)
        assert [len(await transcript(service, each)) for each in ids] == steps


async def pair(service: SessionService) -> tuple[str, str]:
    """Create two sessions that answer each other's messages."""
    ann, bob = (Peer(name, (other,), keep_alive=True) for name, other in (("ann", "bob"), ("bob", "ann")))
    return await new_session(service, peer=ann), await new_session(service, peer=bob)


async def sent(service: SessionService, *ids: str) -> list[str]:
    """Return what the models of sessions were told about their messages, without an order."""
    found = [message for each in ids for message in await transcript(service, each)]
    return [result.content for each in found if isinstance(each, ToolResultsMessage) for result in each.results]


@pytest.mark.parametrize("stored", [False, True])
async def test_loops_end_by_themselves(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Without budgets a chain ends at its bound, with a word to the last sender; a user's prompt begins a new one."""
    config = Config(limits=Limits(peer_hops=5))
    async with open_runtime(Scripted(), store=tmp_path if stored else None, config=config) as service:
        ann, bob = await pair(service)
        for chains in (1, 2):
            assert (await use(service, ann, "send_message", to="bob", body="ping"))[0] == "sent"
            await trio.sleep(600)
            told = await sent(service, ann, bob)
            assert told.count("sent") == 5 * chains
            refused = [each for each in told if "limits.peer_hops" in each]
            assert len(refused) == chains == len(told) - 5 * chains
            assert "5 messages" in refused[0]


async def test_a_chain_goes_on_in_another_process(tmp_path: Path) -> None:
    """The number of a message is stored with it: a restart while it waits begins no new chain."""
    async with open_runtime(Scripted(), store=tmp_path) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        await use(service, ann, "send_message", to="bob", body="ping")
        await trio.sleep(1)
    async with open_runtime(Scripted(), store=tmp_path) as service:
        (waiting,) = await (await storage_of(service).reader()).read(WaitingInputs(bob, ANY_TENANT))
        assert waiting.input.hops == 1
        began = StartTurn(waiting.input.text, hops=15)
        await supervisor_of(service).admit(bob, began).wait()
        await trio.sleep(60)
        (sent_on,) = await (await storage_of(service).reader()).read(WaitingInputs(ann, ANY_TENANT))
        assert sent_on.input.hops == 16


async def test_a_user_in_the_middle_begins_a_new_chain() -> None:
    """Words that are steered into a turn count as a prompt, and a prompt is newer than the messages that it finds."""
    config = Config(limits=Limits(peer_hops=2))
    async with open_runtime(Scripted(), config=config) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        for _ in range(4):
            assert await use(service, ann, "send_message", to="bob", body="news") == ("sent", False)
            assert await use(service, bob, "send_message", to="ann", body="news") == ("sent", False)


async def test_a_request_at_the_bound_can_be_answered() -> None:
    """Its response is one message more, and the peer that gets it can send nothing on."""
    config = Config(limits=Limits(peer_hops=1))
    async with open_runtime(Scripted(), config=config) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        told, _ = await use(service, ann, "send_request", to="bob", intent="count")
        request_id, comms = told.split()[3].rstrip(";"), supervisor_of(service).comms
        record = (await service.read(bob)).state
        assert record.session_id == bob
        found = await comms.find("default", "bob")
        assert found is not None
        comms.check(found, "response", 2)
        with pytest.raises(ToolError, match=r"limits\.peer_hops"):
            comms.check(found, "message", 2)
        with pytest.raises(ToolError, match=r"limits\.peer_hops"):
            comms.check(found, "response", 3)
        answer = {"to": "ann", "in_reply_to": request_id, "status": "ok", "result": "1 2 3"}
        assert await use(service, bob, "send_response", **answer) == ("sent", False)


async def test_messages_have_a_rate() -> None:
    """A model that sends more within a minute is refused until the minute has passed; programs are not."""
    config = Config(limits=Limits(peer_rate=3))
    async with open_runtime(Scripted(), config=config) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        await new_session(service, peer=Peer("bob", ("ann",)))
        told = [(await use(service, ann, "send_message", to="bob", body="news"))[0] for _ in range(5)]
        assert ["limits.peer_rate" in each for each in told] == [False, False, False, True, True]
        await service.send_message(ann, "bob", "news")
        await trio.sleep(60)
        assert (await use(service, ann, "send_message", to="bob", body="news"))[0] == "sent"


@pytest.mark.parametrize(("runtime", "session"), [("inherit", "enable"), ("disable", "enable"), ("enable", "disable")])
async def test_the_kind_can_be_switched(runtime: Switch, session: Switch) -> None:
    """It is there in every runtime, whose settings hold where the session does not say otherwise."""
    config = Config(switches=Switches(comms=runtime))
    async with open_runtime(Scripted(), config=config) as service:
        assert service.capabilities().tools["comms"] == ("off" if runtime == "disable" else "on")
        ann = await new_session(service, peer=Peer("ann", ("bob",)), overrides=Switches(comms=session))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        _, is_error = await use(service, ann, "list_peers")
        assert is_error == (session == "disable")
        _, is_error = await use(service, bob, "list_peers")
        assert is_error == (runtime == "disable")


async def test_one_of_many_gets_the_name() -> None:
    """Of sessions that are created at the same time under one name, one is there and the others are refused."""
    async with open_runtime(Scripted()) as service, trio.open_nursery() as nursery:
        asked = [ask(nursery, new_session, service, peer=Peer("ann")) for _ in range(20)]
        for each in asked:
            await each.ended.wait()
        assert [each.error is None for each in asked].count(True) == 1
        assert {type(each.error) for each in asked} == {type(None), InvalidParamsError}
        assert len((await service.list()).sessions) == 1


@pytest.mark.parametrize("stored", [False, True])
async def test_a_response_needs_its_request(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """One to a request that nobody, or somebody else, has sent is refused; one to a request that waits is not."""
    store = tmp_path if stored else None
    async with open_runtime(Scripted(), store=store) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob", "cat")))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        await new_session(service, peer=Peer("cat", ("ann",)))
        request_id = await service.send_message(bob, "ann", "count", kind="request")
        no_request = await service.send_message(bob, "ann", "hi")
        for to, wrong in (("bob", "no-such-request"), ("cat", request_id), ("bob", no_request + "x"), ("bob", "%")):
            with pytest.raises(InvalidParamsError) as caught:
                await service.send_message(ann, to, "1 2 3", request_id=wrong, status="ok", kind="response")
            assert caught.value.path == "$.request_id"
        answer = {"to": "bob", "in_reply_to": "no-such-request", "status": "ok", "result": "1"}
        told, is_error = await use(service, ann, "send_response", **answer)
        assert (told, is_error) == ("request_id: there is no request 'no-such-request' of 'bob' to this session", True)
        response = partial(service.send_message, ann, "bob", "1 2 3", kind="response", status="ok")
        await response(request_id=request_id)  # a turn has taken the request by now
        waiting = await service.send_message(bob, "ann", "count on", kind="request")
        await response(request_id=waiting)
        assert len(await service.inputs(bob)) == 2
