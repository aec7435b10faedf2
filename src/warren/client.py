"""The client of a gateway, by the name that programs import it by: `from warren.client import connect`."""

from warren.transport.client import RemoteService as RemoteService
from warren.transport.client import connect as connect
