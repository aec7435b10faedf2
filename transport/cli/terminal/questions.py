"""Questions to the user on a terminal, each answered with one of a few words."""

import contextlib
import os
from collections.abc import Mapping
from typing import Final

import click
import trio

from warren.base.values import define
from warren.transport.cli.terminal.streams import Streams, visible

YES_OR_NO: Final = {"y": "y", "yes": "y", "n": "n", "no": "n", "": "n"}
LINE: Final = 65536


@define(eq=False)
class Question:
    """A question that is put again until the answer is one of its words.

    Attributes:
        streams: the streams for the question.
        text: the question, with a space at its end.
        words: the answers in lower case, and what each of them means.
        descriptor: the file descriptor of the answer.
    """

    streams: Streams
    text: str
    words: Mapping[str, str]
    descriptor: int = 0

    async def ask(self, heading: str = "") -> str | None:
        """Return the meaning of the answer, or None for the end of the input; a heading is shown once.

        A signal that came before the answer has reached its receiver when this returns, and may have cancelled the
        question. After a cancellation, later input is left to other readers.
        """
        # Input that was typed before the question was on the screen is no answer to it.
        with contextlib.suppress(ImportError, OSError):
            import termios  # noqa: PLC0415 - not everywhere

            with contextlib.suppress(termios.error):
                termios.tcflush(self.descriptor, termios.TCIFLUSH)
        try:
            self._write(heading + self.text)
            while True:
                await trio.lowlevel.wait_readable(self.descriptor)
                line = os.read(self.descriptor, LINE)
                if not line:
                    self._write("\n")
                    return None
                if (word := self.words.get(line.decode(errors="replace").strip().lower())) is not None:
                    await _signals_received()
                    return word
                self._write(self.text)
        except (trio.Cancelled, KeyboardInterrupt):
            self._write("\n")
            raise

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self.streams.err.write(visible(text))
            self.streams.err.flush()


async def _signals_received() -> None:
    """Wait until each task that receives signals has had those that came before this call."""
    passed_on = trio.Event()
    # Trio passes signals on by this queue: theirs are in it already.
    trio.lowlevel.current_trio_token().run_sync_soon(passed_on.set)
    await passed_on.wait()
    # The receivers were woken together with this task; by the next round they have run.
    await trio.lowlevel.checkpoint()


def confirm(question: str, streams: Streams | None = None, descriptor: int = 0) -> None:
    """Ask the user on the terminal whether to go on. Raises click.Abort unless the answer is yes.

    A Ctrl-C is a refusal whenever it comes, even if a yes comes with it. `input`, and `click.confirm` with it, drops
    one that comes while it writes the question, and sees one that comes before it reads only with the next line.
    """
    asked = Question(streams or Streams(), f"{question} [y/N]: ", YES_OR_NO, descriptor)
    try:
        # Trio wakes for each signal, and ends the run with a Ctrl-C that came too late for the task.
        agreed = trio.run(asked.ask) == "y"
    except KeyboardInterrupt:
        raise click.Abort from None
    if not agreed:
        raise click.Abort
