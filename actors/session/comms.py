"""The messages between sessions, and the tools by which models send them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.limits.tenancy import MINUTE, ROUNDING, Accounts
from warren.actors.resources.storage import Storage
from warren.actors.session.inboxes import Inboxes
from warren.actors.session.reminders import Reminders
from warren.actors.turn.chain import Chain
from warren.base.errors import InvalidParamsError, SessionNotFoundError, WarrenError
from warren.base.ids import id_under, new_session_id
from warren.base.values import define
from warren.calls.base import made
from warren.calls.turns import PeerMessage
from warren.conversation import codec
from warren.conversation.inputs import Input
from warren.conversation.peers import PeerInfo, PeerKind
from warren.conversation.records import SessionRecord
from warren.models.tools import Awaited, Tool, ToolContext, ToolError, current_call, tool
from warren.settings.config import Limits
from warren.storage.queries import PeerNamed, SessionRow, WasTold
from warren.storage.refusals import name_taken

SENDING: Final = frozenset({"send_message", "send_response"})
"""The tools by which a model answers its peers."""
REQUEST: Final = "send_request"
"""The tool by which a model asks its peers."""
COMMS_TOOLS: Final = SENDING | {"list_peers", REQUEST}
"""The tools of sessions with a name."""


@define(eq=False)
class Comms:
    """Sends messages between the sessions that trust each other by name.

    Attributes:
        reminders: has the messages of sessions to themselves.
        more: returns the tools by which a session's model makes other sessions work.
        of_agent: returns the tools of a session's agent, with those by which it makes other agents work.
    """

    _inboxes: Inboxes
    _storage: Storage
    _limits: Limits
    reminders: Reminders
    more: Callable[[SessionRecord, Chain | None], Mapping[str, Tool]] = lambda _record, _chain: {}
    of_agent: Callable[[SessionRecord, Chain | None], Mapping[str, Tool]] = lambda _record, _chain: {}
    _rested: dict[str, float] = attrs.field(factory=dict)  # the time from which a session may send the whole number

    async def find(self, tenant: str, name: str) -> SessionRecord | None:
        """Return the session with a name among the peers of a tenant; None if there is none, or it is archived."""
        session_id = await self._storage.read(PeerNamed(tenant, name))
        return None if session_id is None else await self._storage.read(SessionRow(session_id, tenant))

    async def check_free(self, record: SessionRecord) -> None:
        """Raise InvalidParamsError if the name of a new session is taken. Its first commit checks it again."""
        peer = record.options.peer
        if peer is not None and await self.find(record.tenant, peer.name) is not None:
            raise name_taken(peer.name)

    async def peers(self, record: SessionRecord) -> Sequence[PeerInfo]:
        """Return the peers that a session trusts, and whether each can be reached."""
        me = record.options.peer
        found = [(name, await self.find(record.tenant, name)) for name in me.trusts] if me is not None else []
        return tuple(PeerInfo(name, reachable=me is not None and _trusts(other, me.name)) for name, other in found)

    async def send(
        self,
        record: SessionRecord,
        message: PeerMessage,
        by: Accounts | None = None,
        payer: str = "",
        *,
        hops: int = 1,
        key: str | None = None,
        waits: bool = False,
    ) -> str:
        """Put a message into a peer's inbox, and return its id; the response to a request names it.

        Args:
            record: the session that sends.
            message: the message.
            by: the accounts of the caller; None is the account of the session's tenant.
            payer: the client whose limit of tokens a turn counts for that the message begins; empty if it has none.
            hops: the number of the message in its chain.
            key: of the tool call that sends it: the peer gets one message under a key, whose id follows from the key.
            waits: whether a call waits for the response to a request.

        Raises:
            InvalidParamsError: if there is no such peer or request, or one of the two does not trust the other.
            WarrenError: the errors of `Inboxes.put`.
        """
        me, to = record.options.peer, message.to
        if me is None:
            raise InvalidParamsError.at("$.session_id", "the session has no name among peers")
        if to not in me.trusts:
            known = ", ".join(me.trusts) or "nobody"
            raise InvalidParamsError.at("$.to", f"{to!r} is not trusted; trusted are: {known}")
        other = await self.find(record.tenant, to)
        if other is None or not _trusts(other, me.name):
            raise _nobody(to, me.name)
        awaited = False
        if message.kind == "response":
            awaited = await self._has_request(record.session_id, to, message.request_id or "", waits=True)
            if not (awaited or await self._has_request(record.session_id, to, message.request_id or "")):
                problem = f"there is no request {message.request_id!r} of {to!r} to this session"
                raise InvalidParamsError.at("$.request_id", problem)
        if by is None:
            by = self._inboxes.accounts_of(record.tenant)
        message_id = new_session_id() if key is None else id_under(key)
        text = words(me.name, message_id, message, waits=waits)
        input_ = Input(
            message_id,
            "answer" if awaited else "peer",
            text,
            utc_now(),
            key=None if key is None else message_id,  # a peer may not learn the session that is in the key
            source=me.name,
            starts=other.options.wakes and not awaited,
            payer=payer,
            hops=hops,
            request_id=message.request_id if awaited else None,
        )
        try:
            await self._inboxes.put(other.session_id, input_, by)
        except SessionNotFoundError:  # it has ended meanwhile
            raise _nobody(to, me.name) from None
        return message_id

    async def come_late(self, record: SessionRecord, response: Input) -> None:
        """Let a response that no call of a session waits for be a message to it, once. Raises as `Inboxes.put`."""
        key = id_under(f"late:{response.input_id}")
        starts = record.options.wakes
        message = attrs.evolve(response, input_id=key, key=key, kind="peer", starts=starts, request_id=None)
        await self._inboxes.pass_on(record.session_id, message)

    async def _has_request(self, session_id: str, sender: str, request_id: str, *, waits: bool = False) -> bool:
        """Tell whether a request of a peer, which waits or not, is in a session's inbox or in its conversation."""
        heading = _request_heading(request_id, sender, waits=waits)
        return await self._storage.read(WasTold(session_id, request_id, sender, heading))

    def check(self, record: SessionRecord, kind: PeerKind, hops: int) -> None:
        """Check that the model of a session may send one more message. Raises ToolError if it may not.

        Args:
            record: the session.
            kind: the kind of the message. A request that may still be sent may be answered.
            hops: the number of the message in its chain.
        """
        most = self._limits.peer_hops
        if hops > most + (kind == "response"):
            problem = f"not sent: {hops - 1} messages have gone to and fro without a user's prompt between"
            raise ToolError(f"{problem}, the bound of limits.peer_hops; end here, a prompt of a user begins anew")
        now, pace = trio.current_time(), MINUTE / self._limits.peer_rate
        rested = max(now, self._rested.pop(record.session_id, now))
        allowed = rested - now <= MINUTE - pace + ROUNDING
        self._rested[record.session_id] = rested + pace if allowed else rested
        while next(iter(self._rested.values())) <= now:  # the one who has not sent for longest is the first
            del self._rested[next(iter(self._rested))]
        if not allowed:
            problem = f"not sent: this session has sent {self._limits.peer_rate} messages within a minute"
            raise ToolError(f"{problem}, the bound of limits.peer_rate; send fewer, or wait")

    def tools_of(self, record: SessionRecord, chain: Chain | None) -> Mapping[str, Tool]:
        """Return the tools by which a session's model sends to its peers; none if the session has no name.

        Args:
            record: the session.
            chain: the chain of messages that the turn belongs to; None if the tools are only shown.
        """
        more = self.more(record, chain)
        if record.options.peer is None:
            return more
        own = {"comms": self, "record": record, "chain": chain or Chain()}
        made = {each.spec.name: attrs.evolve(each, call=partial(each.call, **own)) for each in _tools()}
        awaits = partial(_awaits, self._limits.approval_timeout)
        return {**more, **made, REQUEST: attrs.evolve(made[REQUEST], awaits=awaits)}


def words(sender: str, message_id: str, message: PeerMessage, *, waits: bool = False) -> str:
    """Return the text of a message for the model that gets it, with all that an answer needs.

    Args:
        sender: the name of the session that sends it.
        message_id: its id.
        message: the message.
        waits: whether a call of the sender waits for the response to a request.
    """
    match message.kind:
        case "message":
            return f"Message from peer {sender}:\n\n{message.body}"
        case "request":
            params = "" if message.params is None else f"\nparams: {codec.encode(message.params).decode()}"
            how = f'Answer it with send_response(to="{sender}", in_reply_to="{message_id}", status=..., result=...).'
            return f"{_request_heading(message_id, sender, waits=waits)} {message.body}{params}\n\n{how}"
        case "response":
            about = f"Response from peer {sender} to your request {message.request_id}"
            return f"{about}: {message.status}\n\n{message.body}"


def _request_heading(request_id: str, sender: str, *, waits: bool) -> str:
    """Return the beginning of the text of a request: by it the response finds the call that waits for it."""
    return (
        f"Request {request_id} from peer {sender}, which waits for the response:"
        if waits
        else (f"Request {request_id} from peer {sender}:")
    )


def _trusts(other: SessionRecord | None, name: str) -> bool:
    return other is not None and other.options.peer is not None and name in other.options.peer.trusts


def _nobody(to: str, sender: str) -> InvalidParamsError:
    return InvalidParamsError.at("$.to", f"there is no {to!r} that trusts {sender!r}")


async def _sent(
    comms: Comms, record: SessionRecord, chain: Chain, to: str, body: str, *, waits: bool = False, **more: Any
) -> str:
    hops = chain.hops + 1
    try:
        message = made(PeerMessage, record.session_id, to, body, **more)
        comms.check(record, message.kind, hops)
        return await comms.send(record, message, hops=hops, key=current_call().key, waits=waits)
    except WarrenError as exc:
        raise ToolError(exc.message.removeprefix("$.")) from exc


async def _list_peers(comms: Any, record: Any, chain: Any) -> str:  # noqa: ARG001 - all are bound alike
    return codec.encode(await comms.peers(record)).decode()


async def _send_message(
    comms: Any, record: Any, chain: Any, to: Annotated[str, "the peer's name"], body: Annotated[str, "what to say"]
) -> str:
    await _sent(comms, record, chain, to, body)
    return "sent"


async def _send_request(
    comms: Any,
    record: Any,
    chain: Any,
    *,
    to: Annotated[str, "the peer's name"],
    intent: Annotated[str, "what is wanted"],
    params: Annotated[dict[str, Any] | None, "data that it needs"] = None,
    wait: Annotated[bool, "whether to wait for the response, and get it as the result of this call"] = False,
    time_limit: Annotated[float | None, "seconds after which you wait no more"] = None,
) -> str:
    if time_limit is not None and not (wait and time_limit > 0):
        raise ToolError("time_limit: must be above 0, and is for a call with wait")
    request_id = await _sent(comms, record, chain, to, intent, kind="request", params=params, waits=wait)
    return f"sent as request {request_id}; the response comes as a message of its own"


async def _send_response(
    comms: Any,
    record: Any,
    chain: Any,
    *,
    to: Annotated[str, "the peer's name"],
    in_reply_to: Annotated[str, "the request's id"],
    status: Annotated[str, "such as ok, refused, failed"],
    result: Annotated[str, "the answer"],
) -> str:
    await _sent(comms, record, chain, to, result, kind="response", request_id=in_reply_to, status=status)
    return "sent"


def _awaits(most: float, call: ToolContext) -> Awaited | None:
    """Return what a call waits for, for `most` seconds unless it says otherwise; None if it does not wait."""
    if call.args.get("wait") is not True:
        return None
    seconds = call.args.get("time_limit")
    limit = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else most
    return Awaited("peer", {"key": call.key, "request": id_under(call.key)}, limit)


def _comms_tool(name: str, description: str, function: Any) -> Tool:
    made = tool(name=name, description=description, category="comms", restart="replay")(
        partial(function, comms=None, record=None, chain=None)
    )
    return attrs.evolve(made, call=function)


@cache
def _tools() -> tuple[Tool, ...]:
    """Return the tools, which `tools_of` binds to a session. Their schemas take time, so they are made once."""
    return (
        _comms_tool(
            "list_peers", "List the peers that you may speak to, and whether they can be reached.", _list_peers
        ),
        _comms_tool(
            "send_message",
            "Say something to a peer. It reads it at its next step; no answer is awaited.",
            _send_message,
        ),
        _comms_tool(
            REQUEST,
            "Ask a peer for something. Its response comes as a message later: go on meanwhile. With wait, its response "
            "is the result of this call; one that comes after the time limit is a message. Do not wait for a peer that "
            "waits for you.",
            _send_request,
        ),
        _comms_tool("send_response", "Answer a peer's request.", _send_response),
    )
