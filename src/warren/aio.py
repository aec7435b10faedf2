"""Warren for programs on asyncio, by the name that they import it by: `from warren.aio import open_supervisor`."""

from warren.transport.aio import Service as Service
from warren.transport.aio import open_supervisor as open_supervisor
