"""The agent of the Agent Client Protocol, as editors speak it: JSON-RPC on stdin and stdout, one message a line.

May import `warren.transport.rpc`, and the packages below transport.
"""

from warren.transport.acp.agent import AgentSettings
from warren.transport.acp.connection import Connection

__all__ = ["AgentSettings", "Connection"]
