"""The service for programs on asyncio: the runtime runs on trio in a thread of its own.

Begin with `open_supervisor`. May import `warren.transport.embed`, and what that imports.
"""

from warren.transport.aio.opening import open_supervisor
from warren.transport.aio.service import Service

__all__ = ["Service", "open_supervisor"]
