"""The entrance of a runtime for other nodes, as the gateway sees it: it needs nothing of the client. No I/O."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from warren.calls.facade import Health, RuntimeService
from warren.reports.metrics import History, Metrics

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class NodeService(RuntimeService):
    """The service of a runtime that is a node: clients use the service itself, other nodes its part `own`."""

    @property
    @abstractmethod
    def own(self) -> RuntimeService:
        """The sessions that this node has or may take. A call for a session of another node is refused."""

    @property
    @abstractmethod
    def is_first(self) -> bool:
        """Whether this process acts for all workers of its command; a node that serves alone acts for itself."""

    @property
    @abstractmethod
    def number(self) -> int | None:
        """The number of this node in the store; None while the store does not know it."""

    @abstractmethod
    async def pass_on(self, number: int, scope: "Scope", receive: "Receive", send: "Send") -> bool:
        """Have another node answer an HTTP request (ASGI) of a client, and return True; False if that node is gone.

        Raises AgentError: with the cause `unreachable` if the node cannot be reached now, with the cause
        `connection_lost` if it was lost after it may have got the request.

        Args:
            number: the number of the node in the store.
            scope: the request, for the same path of the gateway there, with its principal under `PRINCIPAL`.
            receive: brings its body in one piece.
            send: takes the answer.
        """

    @abstractmethod
    def proof_for(self, token: str) -> str | None:
        """Return the proof that this is the node that a token of another node is meant for; None if it is not."""

    @abstractmethod
    async def health_of_group(self) -> Health:
        """Return the health of this node and of those that serve the same port, within a second.

        It is degraded if one of them does not answer.
        """

    @abstractmethod
    async def metrics_of_group(self, own: Metrics) -> Metrics:
        """Return the metrics of this node and of those that serve the same port, within a second.

        Each series has the number of its process as a label. A node that does not answer is left out.

        Args:
            own: the metrics of this process.
        """

    @abstractmethod
    async def load_of_nodes(self) -> History:
        """Return the load of the last hour of all nodes on the store together, within a second.

        A node that does not answer is left out. Raises PermissionDeniedError as `load`.
        """

    @abstractmethod
    async def asked_to_drain(self) -> None:
        """Return when an operator has asked this node to end in order."""
