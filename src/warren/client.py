"""The client of a gateway, by the name that programs import it by: `from warren.client import connect`."""

from warren.transport.client import RemoteService, connect

__all__ = ["RemoteService", "connect"]
