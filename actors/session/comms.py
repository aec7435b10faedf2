"""The way into the inboxes of sessions, and the messages between sessions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs

from warren import codec
from warren.actors.eventlog import utc_now
from warren.actors.protocol import Arrived, Loaded, Withdraw
from warren.actors.session.inbox import ending_of
from warren.actors.session.mailboxes import Mailboxes
from warren.actors.storage import Storage
from warren.errors import AgentError, InvalidParamsError, LeasedError, WarrenError
from warren.ids import new_session_id
from warren.inputs import Input, Numbered
from warren.keywords import made
from warren.mailbox import Reply
from warren.peers import Peer, PeerInfo, PeerMessage
from warren.records import SessionRecord
from warren.storage import Enqueue, Enqueued
from warren.storage.refusals import name_taken
from warren.tools import Tool, ToolError, tool
from warren.values import define
from warren.views import TurnResult

if TYPE_CHECKING:
    from warren.storage import Store


@define(eq=False)
class Comms:
    """Puts inputs into the inboxes of sessions. An input is stored before its sender hears that it was taken."""

    _mailboxes: Mailboxes
    _storage: Storage
    _limit: int  # of inputs that wait for one session
    _entering: set[str] = attrs.field(factory=set)

    async def enqueue(
        self, session_id: str, input_: Input, *, waits: bool, tools: Mapping[str, Tool]
    ) -> TurnResult | bool:
        """Put an input into a session's inbox, and return when it is stored there, or when its turn has ended.

        An input with the key of an earlier one is not taken twice: its sender gets the outcome of the earlier one.

        Args:
            session_id: the session.
            input_: the input.
            waits: whether the call waits for the turn that takes the input. The result is the turn's; without `waits`
                it is whether the input is new.
            tools: tools that the sender offers in that turn.

        Raises:
            SessionNotFoundError: if the session is unknown or archived.
            StoreError: if the input could not be stored.
            CapacityExceededError: if the inbox is full.
            WarrenError: the error that the turn ended with.
        """
        self._mailboxes.check_open()
        known = await self._store_input(session_id, input_, anywhere=not waits)
        if known.outcome is not None and not waits:
            return False
        if known.elsewhere:  # the process with the session polls the store for new inputs
            return known.fresh
        if known.outcome:  # an empty outcome is of a turn that may still run: only its session can tell
            return ended(known.outcome, session_id)
        message = Arrived(known.numbered.input, waits, known.numbered.number, tools)
        reply: Reply[TurnResult | bool] = self._mailboxes.mailbox(session_id).post(message)
        try:
            answer = await reply.wait()
        except LeasedError:
            if waits:
                raise
            return known.fresh  # another process has just taken the session; the input is stored and goes with it
        return answer if waits else known.fresh and answer is True

    async def _store_input(self, session_id: str, input_: Input, *, anywhere: bool) -> Enqueued:
        """Store an input. Ask another process for the session if it is there, unless the input may be `anywhere`."""
        limit, find = self._limit, partial(_enqueued, session_id, input_.input_id)
        operation, storage = Enqueue(session_id, input_, limit, anywhere), self._storage
        self._entering.add(input_.input_id)
        try:
            return await storage.write_or_find(operation, find)
        except LeasedError:
            if not await storage.ask_for(session_id):
                raise
            return await storage.write_or_find(operation, find)
        finally:
            self._entering.discard(input_.input_id)

    def found(self, session_id: str, numbered: Numbered) -> None:
        """Tell a session of an input that another process has put into its inbox.

        An input that this process is storing is left to `enqueue`, whose message has the sender's tools as well. There
        is no checkpoint between its commit and that message, so the session never gets two messages of one input.
        """
        if numbered.input.input_id not in self._entering:
            message = Arrived(numbered.input, waits=False, number=numbered.number)
            self._mailboxes.mailbox(session_id).tell(message)

    async def enqueue_and_wait(self, session_id: str, input_: Input, *, tools: Mapping[str, Tool]) -> TurnResult:
        """Put an input into a session's inbox, and return the result of its turn. Raises the errors of `enqueue`."""
        result = await self.enqueue(session_id, input_, waits=True, tools=tools)
        if isinstance(result, bool):
            raise AgentError("the turn came to nothing", session_id=session_id, cause="crash")
        return result

    async def withdraw(self, session_id: str, input_id: str) -> None:
        """Take an input back that waits. A call that waits for its turn gets AgentError("cancelled").

        Raises:
            InvalidParamsError: if no input of that id waits.
            StoreError: if the withdrawal could not be stored.
        """
        try:
            await self._mailboxes.mailbox(session_id).ask(Withdraw(input_id))
        except InvalidParamsError:
            found = await self._stored(session_id, input_id)
            if found is None:
                raise
            # An input is stored, and listed, a moment before its session hears of it.
            mailbox = self._mailboxes.mailbox(session_id)
            mailbox.tell(Arrived(found.input, waits=False, number=found.number, tools={}))
            await mailbox.ask(Withdraw(input_id))

    async def _stored(self, session_id: str, input_id: str) -> Numbered | None:
        """Return an input that waits in the store; None if there is none of that id."""
        found = await _enqueued(session_id, input_id, await self._storage.reader())
        return None if found is None else found.numbered

    async def record(self, session_id: str) -> SessionRecord:
        """Return a session's record, loaded if need be."""
        return await self._mailboxes.mailbox(session_id).ask(Loaded())

    # -- peers

    async def find(self, name: str) -> SessionRecord | None:
        """Return the session with a name among peers; None if there is none, or it is archived."""
        store = await self._storage.reader()
        session_id = await store.named(name)
        return None if session_id is None else await store.record(session_id)

    async def check_free(self, peer: Peer | None) -> None:
        """Raise InvalidParamsError if the name is taken. The commit that creates the session checks it again."""
        if peer is not None and await self.find(peer.name) is not None:
            raise name_taken(peer.name)

    async def peers(self, record: SessionRecord) -> Sequence[PeerInfo]:
        """Return the peers that a session trusts, and whether each can be reached."""
        me = record.options.peer
        found = [(name, await self.find(name)) for name in me.trusts] if me is not None else []
        return tuple(PeerInfo(name, reachable=me is not None and _trusts(other, me.name)) for name, other in found)

    async def send(self, record: SessionRecord, message: PeerMessage) -> str:
        """Put a message into a peer's inbox, and return its id; the response to a request names it.

        Raises:
            InvalidParamsError: if there is no such peer or request, or one of the two does not trust the other.
            WarrenError: the errors of `enqueue`.
        """
        me, to = record.options.peer, message.to
        if me is None:
            raise InvalidParamsError("$.session_id: the session has no name among peers", path="$.session_id")
        if to not in me.trusts:
            known = ", ".join(me.trusts) or "nobody"
            raise InvalidParamsError(f"$.to: {to!r} is not trusted; trusted are: {known}", path="$.to")
        other = await self.find(to)
        if other is None or other.options.peer is None or not _trusts(other, me.name):
            raise InvalidParamsError(f"$.to: there is no {to!r} that trusts {me.name!r}", path="$.to")
        if message.kind == "response" and not await self._has_request(record.session_id, to, message.request_id or ""):
            problem = f"there is no request {message.request_id!r} of {to!r} to this session"
            raise InvalidParamsError(f"$.request_id: {problem}", path="$.request_id")
        message_id = new_session_id()
        text = words(me.name, message_id, message)
        input_ = Input(message_id, "peer", text, utc_now(), source=me.name, starts=other.options.peer.keep_alive)
        await self.enqueue(other.session_id, input_, waits=False, tools={})
        return message_id

    async def _has_request(self, session_id: str, sender: str, request_id: str) -> bool:
        """Tell whether a request of a peer waits in a session's inbox, or is in its conversation."""
        store = await self._storage.reader()
        return await store.was_told(session_id, request_id, sender, _request_heading(request_id, sender))

    def tools_of(self, record: SessionRecord) -> Mapping[str, Tool]:
        """Return the tools by which a session's model sends to its peers; none if the session has no name."""
        if record.options.peer is None:
            return {}
        own = {"comms": self, "record": record}
        return {each.spec.name: attrs.evolve(each, call=partial(each.call, **own)) for each in _TOOLS}


def words(sender: str, message_id: str, message: PeerMessage) -> str:
    """Return the text of a message for the model that gets it, with all that an answer needs."""
    match message.kind:
        case "message":
            return f"Message from peer {sender}:\n\n{message.body}"
        case "request":
            params = "" if message.params is None else f"\nparams: {codec.encode(message.params).decode()}"
            how = f'Answer it with send_response(to="{sender}", in_reply_to="{message_id}", status=..., result=...).'
            return f"{_request_heading(message_id, sender)} {message.body}{params}\n\n{how}"
        case "response":
            about = f"Response from peer {sender} to your request {message.request_id}"
            return f"{about}: {message.status}\n\n{message.body}"


def _request_heading(request_id: str, sender: str) -> str:
    """Return the beginning of the text of a request."""
    return f"Request {request_id} from peer {sender}:"


def _trusts(other: SessionRecord | None, name: str) -> bool:
    return other is not None and other.options.peer is not None and name in other.options.peer.trusts


async def _enqueued(session_id: str, input_id: str, store: "Store") -> Enqueued | None:
    """Return an input that waits in a store; None if there is none of that id."""
    found = (each for each in await store.inbox(session_id) if each.input.input_id == input_id)
    return next(map(Enqueued, found), None)


def ended(outcome: bytes, session_id: str) -> TurnResult:
    """Return the stored result of a turn. Raises the error that the turn ended with."""
    ending = ending_of(outcome, session_id)
    if isinstance(ending, WarrenError):
        ending.session_id = ending.session_id or session_id
        raise ending
    return ending


async def _sent(comms: Comms, record: SessionRecord, to: str, body: str, **more: Any) -> str:
    try:
        return await comms.send(record, made(PeerMessage, record.session_id, to, body, **more))
    except WarrenError as exc:
        raise ToolError(exc.message.removeprefix("$.")) from exc


async def _list_peers(comms: Any, record: Any) -> str:
    return codec.encode(await comms.peers(record)).decode()


async def _send_message(
    comms: Any, record: Any, to: Annotated[str, "the peer's name"], body: Annotated[str, "what to say"]
) -> str:
    await _sent(comms, record, to, body)
    return "sent"


async def _send_request(
    comms: Any,
    record: Any,
    to: Annotated[str, "the peer's name"],
    intent: Annotated[str, "what is wanted"],
    params: Annotated[dict[str, Any] | None, "data that it needs"] = None,
) -> str:
    request_id = await _sent(comms, record, to, intent, kind="request", params=params)
    return f"sent as request {request_id}; the response comes as a message of its own"


async def _send_response(
    comms: Any,
    record: Any,
    *,
    to: Annotated[str, "the peer's name"],
    in_reply_to: Annotated[str, "the request's id"],
    status: Annotated[str, "such as ok, refused, failed"],
    result: Annotated[str, "the answer"],
) -> str:
    await _sent(comms, record, to, result, kind="response", request_id=in_reply_to, status=status)
    return "sent"


def _comms_tool(name: str, description: str, function: Any) -> Tool:
    """Make a tool. It is made once, as its schema takes time; `tools_of` binds it to a session."""
    made = tool(name=name, description=description, category="comms")(partial(function, comms=None, record=None))
    return attrs.evolve(made, call=function)


_TOOLS: Final = (
    _comms_tool("list_peers", "List the peers that you may speak to, and whether they can be reached.", _list_peers),
    _comms_tool(
        "send_message", "Say something to a peer. It reads it at its next step; no answer is awaited.", _send_message
    ),
    _comms_tool(
        "send_request",
        "Ask a peer for something. Its response comes as a message later: go on meanwhile.",
        _send_request,
    ),
    _comms_tool("send_response", "Answer a peer's request.", _send_response),
)
