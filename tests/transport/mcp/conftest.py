"""The command line as a process, for `warren mcp`."""

from tests.transport.cli.conftest import cli

__all__ = ["cli"]
