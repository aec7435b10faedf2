"""Sessions that speak to one another, on every surface that can name them."""

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE, PEERS
from tests.parity.world import Setting, until_event
from warren.base.errors import ErrorCode
from warren.conversation.events import RunCompleted, RunStarted
from warren.conversation.peers import Peer, PeerInfo


async def _named(stage: Stage, name: str, *trusts: str, keep_alive: bool = False) -> str:
    peer = {"name": name, "trusts": list(trusts), "keep_alive": keep_alive}
    return str(stage.well(await stage.one.call(CREATE, prompt=None, peer=peer)).data["session_id"])


@scenario(
    CREATE,
    PEERS,
    "peer/send",
    codes=[ErrorCode.INVALID_PARAMS],
    where="inside",
    setting=Setting(({"text": "I hear"},)),
)
async def message_of_a_peer(stage: Stage) -> None:
    """A message begins a turn of the session that is kept alive; who is not trusted cannot send one."""
    ann = await _named(stage, "ann", "bob", "eve")
    bob = await _named(stage, "bob", "ann", keep_alive=True)
    sent = stage.well(await stage.one.call("peer/send", session_id=ann, to="bob", body="hello"), "peer/send")
    assert sent.data["message_id"]
    await until_event(stage.world, bob, RunCompleted)
    log = await stage.world.log(bob)
    begun = [each.event.prompt for each in log if isinstance(each.event, RunStarted)]
    assert begun == ["Message from peer ann:\n\nhello"]
    for to in ("eve", "dan"):
        refused = await stage.one.call("peer/send", session_id=ann, to=to, body="hello")
        stage.refused(refused, ErrorCode.INVALID_PARAMS, path="$.to")
    twice = await stage.one.call(CREATE, prompt=None, peer={"name": "ann"})
    stage.refused(twice, ErrorCode.INVALID_PARAMS, path="$.peer.name")


@scenario(CREATE, PEERS, "peer/list", "session/read", where="inside")
async def list_of_peers(stage: Stage) -> None:
    """It has whom the session trusts, and tells who of them trusts it too; a session shows its own name."""
    ann = await _named(stage, "ann", "bob", "eve", "dan")
    seen = await stage.one.call("session/read", session_id=ann)
    stage.well(seen, "session/read", peer=Peer("ann", ("bob", "eve", "dan")))
    bob, _ = await _named(stage, "bob", "ann"), await _named(stage, "eve")
    known = (PeerInfo("bob", True), PeerInfo("eve", False), PeerInfo("dan", False))
    stage.well(await stage.one.call("peer/list", session_id=ann), "peer/list", peers=known)
    stage.well(await stage.one.call("session/archive", session_id=bob), "session/archive", archived=True)
    seen = await stage.one.call("peer/list", session_id=ann)
    stage.well(seen, "peer/list", peers=(PeerInfo("bob", False), *known[1:]))


@scenario(CREATE, PEERS, "peer/send", "session/inputs", where="inside")
async def request_and_response(stage: Stage) -> None:
    """They wait for the next turn of a session that is not kept alive, with what is needed to answer them."""
    ann, bob = await _named(stage, "ann", "bob"), await _named(stage, "bob", "ann")
    asked = {"to": "bob", "kind": "request", "body": "count", "params": {"to": 3}}
    request_id = stage.well(await stage.one.call("peer/send", session_id=ann, **asked), "peer/send").data["message_id"]
    answered = {"to": "ann", "kind": "response", "body": "1 2 3", "request_id": request_id, "status": "ok"}
    stage.well(await stage.one.call("peer/send", session_id=bob, **answered), "peer/send")
    ((kind, text, source),) = (await stage.one.call("session/inputs", session_id=bob)).data["waiting"]
    assert (kind, source) == ("peer", "ann")
    assert text.startswith(f'Request {request_id} from peer ann: count\nparams: {{"to":3}}')
    told = f"Response from peer bob to your request {request_id}: ok\n\n1 2 3"
    seen = await stage.one.call("session/inputs", session_id=ann)
    stage.well(seen, "session/inputs", waiting=[("peer", told, "bob")])
