"""The encoding of a request's messages: of a transcript only those that are new since its last request."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import attrs

from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import Kind
from warren.conversation.messages import Message
from warren.conversation.transcript import Continued, Transcript
from warren.transport.providers.encoded import PIECE, Encoded
from warren.transport.providers.omitted import WHOLE, Omitted
from warren.transport.providers.pace import RequestPace
from warren.transport.providers.repair import NONE, Refusals

FEW: Final = 16
"""Messages that are encoded without a checkpoint: a step adds two or three."""
AT_ONCE: Final = 64
"""Messages of a longer context that are encoded in one pass of the loop, unless they have `PIECE` bytes before."""


NO_KINDS: Final[frozenset[Kind]] = frozenset()


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

    def encoded(
        self, messages: Sequence[Message], model: str, kinds: frozenset[Kind] = NO_KINDS, server: Refusals = NONE
    ) -> Awaitable[Encoded]:
        """Return the messages encoded for a model, which takes some kinds of attachments.

        The result is only read, and is good until the next call for its transcript.

        `server` is what the server has refused so far.

        Raises:
            ValueError: if a row of the transcript is damaged.
        """
        if isinstance(messages, Transcript):
            return self._form(messages, model, kinds, server)
        return self._others(messages, model, kinds, server)

    async def _others(
        self, messages: Sequence[Message], model: str, kinds: frozenset[Kind], server: Refusals
    ) -> Encoded:
        if isinstance(messages, Continued):
            context = (await self.encoded(messages.context, model, kinds, server)).copy()
            messages = messages.asked
        else:
            context = self._new(model, kinds, server)
        await self._add(context, messages, len(messages), len(messages))
        return context

    def _new(self, model: str, kinds: frozenset[Kind], server: Refusals) -> Encoded:
        context = self.new(model)
        context.kinds, (context.without, context.omitted) = kinds, server
        return context

    async def _form(self, transcript: Transcript, model: str, kinds: frozenset[Kind], server: Refusals) -> Encoded:
        form, empty = transcript.form, self._empty
        known = form if type(form) is type(empty) and form.maker.provider == empty.maker.provider else None
        made_for = (model, kinds, *server)
        if known is not None and (known.maker.model, known.kinds, known.without, known.omitted) == made_for:
            context = known
        else:
            context = self._new(model, kinds, server)
            if known is not None:
                context.left_out = known.left_out  # which was told already
        bodies, end = transcript.bodies_from(context.end), transcript.end
        old = 0
        if server.omitted.reasoning > context.end:
            old = len(bodies) - len(transcript.bodies_from(max(server.omitted.reasoning, context.end)))
        head = bodies[: len(transcript.prefix)] if context.end < 0 else ()
        transcript.form = None  # an encoding that breaks off half way leaves nothing
        if head:
            await self._add(context, map(codec.decode_message, head), len(head), old)
            context.end_head()
        rest = bodies[len(head) :]
        await self._add(context, map(codec.decode_message, rest), len(rest), old - len(head))
        context.end, transcript.form = end, context
        return context

    async def _add(self, context: Encoded, messages: Iterable[Message], count: int, old: int) -> None:
        """Add messages, of which the first `old` ones go without the reasoning that their server has refused."""
        if context.omitted is not WHOLE or "reasoning_content" in context.without:
            messages = _without(messages, context.omitted, count if "reasoning_content" in context.without else old)
        rest = iter(messages)
        more = count > FEW or _add_some(context, rest)
        while more:
            await self.pace.part()
            more = _add_some(context, rest)


def _without(messages: Iterable[Message], omitted: Omitted, old: int) -> Iterator[Message]:
    """Yield messages without the parts that a server has refused, the first `old` ones without reasoning too."""
    for number, message in enumerate(messages):
        yield omitted.applied(message, old=number < old)


def _add_some(context: Encoded, rest: Iterator[Message]) -> bool:
    """Add messages for about a millisecond; return whether there may be more."""
    enough, number = context.size + PIECE, 0
    for number, message in enumerate(islice(rest, AT_ONCE), 1):  # noqa: B007 - counts them
        context.add(message)
        if context.size > enough:
            return True
    return number == AT_ONCE
