"""The encoding of a request's messages: of a transcript only those that are new since its last request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import attrs

from warren import codec
from warren.attachments import Kind
from warren.messages import Message
from warren.transcript import Continued, Transcript
from warren.transport.providers.encoded import PIECE, Encoded
from warren.transport.providers.pace import RequestPace
from warren.values import frozen

FEW: Final = 16
"""Messages that are encoded without a checkpoint: a step adds two or three."""
AT_ONCE: Final = 64
"""Messages of a longer context that are encoded in one pass of the loop, unless they have `PIECE` bytes before."""


@frozen
class Encoder:
    """Encodes the messages of requests for one protocol.

    The encoded messages of a transcript stay with it, as its `form`: they take about as much memory as the transcript,
    and go with it. A transcript keeps those of one protocol, provider and model.

    Attributes:
        new: returns an empty context of the protocol and the provider for a model.
        pace: the pace of long contexts.
    """

    new: Callable[[str], Encoded]
    pace: RequestPace
    # Forms of this protocol and provider are known by it.
    _empty: Encoded = attrs.field(init=False, eq=False, repr=False)

    @_empty.default
    def _new_empty(self) -> Encoded:
        return self.new("")

    async def encoded(self, messages: Sequence[Message], model: str, kinds: frozenset[Kind] = frozenset()) -> Encoded:
        """Return the messages encoded for a model, which takes some kinds of attachments.

        The result is only read, and is good until the next call for its transcript.

        Raises:
            ValueError: if a row of the transcript is damaged.
        """
        if isinstance(messages, Transcript):
            return await self._form(messages, model, kinds)
        if isinstance(messages, Continued):
            context = (await self.encoded(messages.context, model, kinds)).copy()
            messages = messages.asked
        else:
            context = self._new(model, kinds)
        await self._add(context, messages, len(messages))
        return context

    def _new(self, model: str, kinds: frozenset[Kind]) -> Encoded:
        context = self.new(model)
        context.kinds = kinds
        return context

    async def _form(self, transcript: Transcript, model: str, kinds: frozenset[Kind]) -> Encoded:
        form, empty = transcript.form, self._empty
        made_for = (empty.provider, model, kinds)
        if type(form) is type(empty) and (form.provider, form.model, form.kinds) == made_for:
            context = form
        else:
            context = self._new(model, kinds)
        bodies, end = transcript.bodies_from(context.end), transcript.end
        head = bodies[: len(transcript.prefix)] if context.end < 0 else ()
        transcript.form = None  # an encoding that breaks off half way leaves nothing
        if head:
            await self._add(context, map(codec.decode_message, head), len(head))
            context.end_head()
        await self._add(context, map(codec.decode_message, bodies[len(head) :]), len(bodies) - len(head))
        context.end, transcript.form = end, context
        return context

    async def _add(self, context: Encoded, messages: Iterable[Message], count: int) -> None:
        rest = iter(messages)
        more = count > FEW or _add_some(context, rest)
        while more:
            await self.pace.part()
            more = _add_some(context, rest)


def _add_some(context: Encoded, rest: Iterator[Message]) -> bool:
    """Add messages for about a millisecond; return whether there may be more."""
    enough, number = context.size + PIECE, 0
    for number, message in enumerate(islice(rest, AT_ONCE), 1):  # noqa: B007 - counts them
        context.add(message)
        if context.size > enough:
            return True
    return number == AT_ONCE
