"""The command line as a process, as the command line's own tests have it."""

from tests.transport.cli.conftest import cli

__all__ = ["cli"]
