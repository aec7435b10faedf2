"""The client: a `SessionService` over the WebSocket of a gateway, for programs on trio and on asyncio.

Begin with `connect`. May import `warren.transport.rpc`, and the domain. Needs the extra `client`.
"""

from warren.base.extras import lacking, missing

if lacking("client") is not None:
    raise ModuleNotFoundError(missing("client", "warren.client needs"), name=lacking("client"))

from warren.transport.client.service import RemoteService, connect

__all__ = ["RemoteService", "connect"]
