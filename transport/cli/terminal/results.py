"""The result of a command, as the user asked for it: text, or JSON."""

from collections.abc import Callable
from typing import Any

from warren.conversation import codec
from warren.transport.cli.settings.options import Options
from warren.transport.cli.terminal.streams import Streams


def show_result(options: Options, data: object, show: Callable[..., None], *args: Any) -> None:
    """Write data as JSON if the options ask for it, else call `show` with the streams and the arguments."""
    streams = Streams()
    if options.mode.json:
        streams.write(codec.encode(data).decode() + "\n")
    else:
        show(streams, *args)


def show_text(options: Options, data: object, text: str) -> None:
    """Write data as JSON if the options ask for it, else a text."""
    show_result(options, data, Streams.write, text)
