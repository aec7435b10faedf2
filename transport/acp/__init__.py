"""The agent of the Agent Client Protocol, as editors speak it: JSON-RPC on stdin and stdout, one message a line.

May import `warren.transport.rpc`, and the packages below transport.
"""

from warren.transport.acp.agent import AgentSettings
from warren.transport.acp.agent_dispatcher import serve_acp

__all__ = ["AgentSettings", "serve_acp"]
