"""The surfaces, each an adapter."""

from collections.abc import Sequence
from typing import Final

from tests.parity.surface import Surface
from tests.parity.surfaces.acp import Acp
from tests.parity.surfaces.cli import Cli, ServedCli
from tests.parity.surfaces.client import Remote
from tests.parity.surfaces.jsonrpc import Stdio, WebSocket
from tests.parity.surfaces.mcp import Mcp
from tests.parity.surfaces.meerkat import Meerkat
from tests.parity.surfaces.rest import Rest
from tests.parity.surfaces.sdk import Sdk

SURFACES: Final[Sequence[Surface]] = (
    Sdk(),
    WebSocket(),
    Stdio(),
    Remote(),
    Meerkat(),
    Rest(),
    Mcp(),
    Acp(),
    Cli(),
    ServedCli(),
)
