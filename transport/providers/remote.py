"""Model calls over HTTP: one shared client, streams read until their end, every failure a ProviderError."""

import logging
import zlib
from binascii import b2a_base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import httpx
import trio

from warren.base.errors import ProviderCause, ProviderError
from warren.base.fields import FieldValueError
from warren.base.values import define, frozen
from warren.conversation.attachments import Attachment, ReadFile
from warren.conversation.messages import MAX_BLOCKS, Message
from warren.conversation.options import ModelOptions
from warren.conversation.transcript import ATTACHED, Continued, Transcript
from warren.models.model import NO_FILES, Emitted, ModelReply, ModelRequest, Piece, Repaired
from warren.reports.tracing import HEADER, here
from warren.settings.config import Dialect
from warren.transport.providers import failures, wire
from warren.transport.providers.accumulate import Answer, Counts
from warren.transport.providers.anthropic import MessagesDialect
from warren.transport.providers.authorizers import Authorizer, authorizer
from warren.transport.providers.bedrock import FRAMES, BedrockDialect, FrameSplitter
from warren.transport.providers.dialect import ModelDialect
from warren.transport.providers.encoded import NO_CHANGES, PIECE, Encoded, Part, letters
from warren.transport.providers.encoder import Encoder
from warren.transport.providers.gemini import GeminiDialect
from warren.transport.providers.learned import Memory
from warren.transport.providers.omitted import WHOLE, Omitted
from warren.transport.providers.openai import ChatDialect, CompatibleChat
from warren.transport.providers.pace import RequestPace
from warren.transport.providers.pictures import weight_without_files
from warren.transport.providers.rate import Entry, RateLimit
from warren.transport.providers.repair import (
    MOST_PARTS,
    MOST_REPAIRS,
    NOT_REPAIRED,
    NOTHING,
    Change,
    Learned,
    Refusals,
    Refused,
    change,
    is_other,
    parts_of,
)
from warren.transport.providers.responses import CompatibleResponses, ResponsesDialect
from warren.transport.providers.settings import Bounds, ModelEndpoint
from warren.transport.providers.sse import Splitter
from warren.transport.providers.vertex import VertexDialect

logger: Final = logging.getLogger("warren.model")
T = TypeVar("T")
DIALECTS: Final[dict[Dialect, ModelDialect]] = {
    "anthropic": MessagesDialect(),
    "gemini": GeminiDialect(),
    "openai-chat": ChatDialect(),
    "openai-responses": ResponsesDialect(),
}
ELSEWHERE: Final[dict[Dialect, ModelDialect]] = DIALECTS | {
    "openai-chat": CompatibleChat(),
    "openai-responses": CompatibleResponses(),
}
"""The protocols at servers that are not those of their makers."""
IN_CLOUDS: Final[dict[str, ModelDialect]] = {"bedrock": BedrockDialect(), "vertex": VertexDialect()}
"""The protocols of clouds that differ from those of the makers of the models."""
CONNECT_SECONDS: Final = 30.0
CREDENTIAL_SECONDS: Final = 60.0
"""Seconds within which the credentials of a cloud have to be there: their source is another server, or a program."""
REFUSAL_SECONDS: Final = 5.0
"""Seconds for the words of a refusal, behind its status."""
USAGE_SECONDS: Final = 5.0
"""Seconds to wait for the token counts of a finished answer."""
CLOSE_SECONDS: Final = 0.1
"""Seconds to wait for the end of a stream after its last event; after that the connection is not reused."""
EVENTS: Final = "text/event-stream"
"""The content type of streams; servers and proxies send others, too."""
ENCODINGS: Final = "gzip"
"""The encoding that is asked for; `DecodedBody` decodes `deflate` as well, which not all servers send alike."""
LONGEST_REFUSAL: Final = 64 * 1024
"""Bytes of an error's body that are read."""
MOST_ADDRESSES: Final = 256
"""Models of which each provider keeps the address and the headers, and the way in which their streams end."""
OFF_THE_LOOP: Final = 64 * 1024
"""Bytes of JSON from which on a thread parses it, so that the event loop is not blocked."""
FEW_BLOCKS: Final = 256
"""Blocks of an answer from which on a thread makes the message of them."""
STEP: Final = PIECE // 4 * 3
"""Bytes of a file that are one piece in base64."""
INFLATED: Final = 64 * 1024
"""Bytes that are decompressed in one step."""


# Failures that mean the same before and during an answer.
_BREAKS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, ProviderCause], ...]] = (
    (httpx.ConnectTimeout, "did not accept the connection in time", "connection"),
    (httpx.DecodingError, "sent data that cannot be decompressed", "bad_response"),
    (
        (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError),
        "cannot be called: the request is not valid HTTP",
        "bad_address",
    ),
)
_FOR_GOOD: Final = ("bad_address", "certificate", "too_long")


def provider(
    endpoint: ModelEndpoint, connect: Callable[[], httpx.AsyncClient], bounds: Bounds, limit: RateLimit
) -> "HttpProvider":
    """Return the provider that calls an endpoint; `connect` returns the client, `limit` is that of the key."""
    own = DIALECTS if endpoint.official else ELSEWHERE
    dialect = IN_CLOUDS.get(endpoint.vendor.cloud or "") or own[endpoint.dialect]
    return HttpProvider(endpoint, dialect, connect, bounds, limit, authorizer(endpoint))


@define
class _Ends:
    """Knowledge of the way in which the streams of a model end.

    Attributes:
        told: whether any stream had a stop reason.
        untold: number of the streams that ended without one; those whose tokens were counted count twice.
    """

    told: bool = False
    untold: int = 0

    def cut(self, *, counted: bool) -> bool:
        """Return whether an answer was cut that ended, by the words of the server, and has no stop reason.

        Models that never give a reason are known by their second answer, as the first one is asked for again, or by
        the first one whose tokens the server has counted behind it.
        """
        self.untold += 2 if counted else 1
        return self.told or self.untold == 1


@frozen
class HttpProvider:
    """A provider behind HTTP.

    Attributes:
        endpoint: the address and the key.
        dialect: the protocol.
        connect: returns the shared client.
        bounds: the time for which the server may be silent, and the bytes that it may send.
        limit: the rate limit of the key.
        authorizer: adds the credentials of a cloud; None if the dialect sends the key.
    """

    endpoint: ModelEndpoint
    dialect: ModelDialect
    connect: Callable[[], httpx.AsyncClient] = attrs.field(repr=False)
    bounds: Bounds
    limit: RateLimit = attrs.field(repr=False)
    authorizer: Authorizer | None = attrs.field(default=None, repr=False)
    _pace: RequestPace = attrs.field(factory=RequestPace, init=False, repr=False)
    _encoder: Encoder = attrs.field(init=False, repr=False)
    _learned: Memory = attrs.field(init=False, repr=False)
    _addresses: dict[str, tuple[httpx.URL, httpx.Headers]] = attrs.field(factory=dict, init=False, repr=False, eq=False)
    _extensions: Mapping[str, Any] = attrs.field(init=False, repr=False)
    _ends: dict[str, _Ends] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    @limit.default
    def _own_limit(self) -> RateLimit:
        return RateLimit(self.bounds.wait)

    @_encoder.default
    def _new_encoder(self) -> Encoder:
        return Encoder(partial(self.dialect.context, self.endpoint), self._pace)

    @_learned.default
    def _configured(self) -> Memory:
        without = self.endpoint.without
        return Memory(Learned(without) if without else NOTHING)

    @_extensions.default
    def _bounds_for_httpx(self) -> Mapping[str, Any]:
        silence = self.bounds.silence
        patience = {"connect": min(CONNECT_SECONDS, silence), "read": silence, "write": silence, "pool": None}
        return {"timeout": patience}

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Call the model; see `warren.models.model.Provider`."""
        self.check_ready()
        entry = await self.limit.enter(self.endpoint.vendor.name)
        try:
            learned, omitted = self._learned.of(request.model), self._omitted(request.messages)
            try:
                return await self._sent(request, learned, omitted, emit, entry)
            except failures.RefusalError as exc:
                refusal = exc
            return await self._repaired(refusal, request, (learned, omitted), emit, entry)
        except ProviderError as exc:
            if exc.cause == "rate_limited" and exc.details.get("status") is None:  # in the midst of an answer
                entry.refused({}, exc.retry_after)
            raise
        finally:
            entry.leave()

    async def _repaired(
        self,
        refusal: failures.RefusalError,
        request: ModelRequest,
        known: tuple[Learned, Omitted],
        emit: Callable[[Emitted], None],
        entry: Entry,
    ) -> ModelReply:
        """Return the reply to a request that its server has refused, once repairs help. Raises ProviderError."""
        (learned, omitted), wide, guessed = known, 0, False
        for _ in range(MOST_PARTS):
            repair = await self._repair(refusal, request, learned, omitted) if wide < MOST_REPAIRS else None
            if repair is None:
                break
            wide += repair.learned.tools == learned.tools and repair.omitted.files == omitted.files
            learned, omitted, guessed = repair.learned, repair.omitted, guessed or repair.guess
            self._tell(request, repair.told)
            emit(attrs.evolve(repair.told, usage=refusal.usage) if refusal.usage else repair.told)
            try:
                reply = await self._sent(request, learned, omitted, emit, entry, again=True)
            except failures.RefusalError as exc:
                if not guessed and is_other(exc.said, refusal.said):
                    self._keep(request, learned, omitted)
                refusal = exc
            except ProviderError:
                if not guessed:
                    self._keep(request, learned, omitted)
                raise
            else:
                self._keep(request, learned, omitted)
                return reply
        raise refusal

    def _keep(self, request: ModelRequest, learned: Learned, omitted: Omitted) -> None:
        """Remember repairs that have helped, at least past one refusal; a guess may have met another fault."""
        self._learned.keep(request.model, learned)
        if (transcript := _transcript_of(request.messages)) is not None:
            transcript.parts += parts_of(transcript, omitted, self._omitted(transcript))
            transcript.omitted[self.endpoint.vendor.name] = omitted

    async def _repair(
        self, refusal: failures.RefusalError, request: ModelRequest, learned: Learned, omitted: Omitted
    ) -> Change | None:
        """Return the change of a request that its server has refused; None if nothing helps."""
        if refusal.said is None or refusal.cause in NOT_REPAIRED:
            return None
        transcript = _transcript_of(request.messages)
        end = len(request.messages) if transcript is None else transcript.end
        asked = learned.applied(request)
        parts = self.dialect.body(asked, self.endpoint, await self._encoded(asked, learned, omitted))
        refused = Refused(refusal.said, asked, parts, end, learned, omitted)
        small = len(parts) == 1 and len(parts[0]) < OFF_THE_LOOP if isinstance(parts[0], bytes) else False
        return change(refused) if small else await beside(partial(change, refused))

    def _tell(self, request: ModelRequest, told: Repaired) -> None:
        logger.warning(
            "repaired a refused request provider=%s model=%s session=%s action=%s what=%r why=%r",
            *(self.endpoint.vendor.name, request.model, request.session_id, told.action, told.what, told.why),
        )

    def learned(self, model: str) -> Learned:
        """Return what the server does not take, or give, for a model, as far as that is known."""
        known, ends = self._learned.of(model), self._ends.get(model, _Ends())
        silent = ends.untold > 1 and not ends.told
        return attrs.evolve(known, without=known.without | {"finish_reason"}) if silent else known

    def _omitted(self, messages: Sequence[Message]) -> Omitted:
        transcript = _transcript_of(messages)
        return WHOLE if transcript is None else transcript.omitted.get(self.endpoint.vendor.name, WHOLE)

    def _encoded(self, asked: ModelRequest, learned: Learned, omitted: Omitted) -> Awaitable[Encoded]:
        server = Refusals(learned.without, omitted)
        return self._encoder.encoded(asked.messages, asked.model, asked.files.kinds, server)

    async def _sent(
        self,
        request: ModelRequest,
        learned: Learned,
        omitted: Omitted,
        emit: Callable[[Emitted], None],
        entry: Entry,
        *,
        again: bool = False,
    ) -> ModelReply:
        if learned is not NOTHING:
            request = learned.applied(request)
        context = await self._encoded(request, learned, omitted)
        parts, read = self.dialect.body(request, self.endpoint, context), request.files.read
        body = Pieces(parts if len(parts) == 1 else await with_texts(parts, read), self._pace, read)
        answer = self.dialect.answer(request, self.endpoint, context.calls)
        changes = NO_CHANGES
        if self.dialect.tools.changed and request.tools:
            changes = self.dialect.tools.changes(request)
            told = changes.told(context)
            for repaired in () if again else told:  # the first request has told of them
                emit(repaired)
        try:
            await self._exchange(request.model, body, answer, emit, entry)
        except ProviderError as exc:
            if answer.counts.input:
                exc.usage = answer.counts.usage(body.weight, ())
            if answer.size and isinstance(exc, failures.RefusalError):
                exc.said = None
            raise
        finally:
            self._pace.end(body)
        if answer.blocks < FEW_BLOCKS and answer.size < OFF_THE_LOOP:
            reply = answer.reply(body.weight)
        else:
            reply = await beside(partial(answer.reply, body.weight))
        if changes is not NO_CHANGES:
            reply = changes.undone(reply)
        if answer.blocks <= MAX_BLOCKS:
            return reply
        # The reading has ended before the server's count of what it has said, which is charged all the same.
        return attrs.evolve(reply, usage=Counts(answer.counts.input).usage(body.weight, reply.message.blocks))

    async def listed(self) -> tuple[str, ...]:
        """Return the names of the models that the server lists, none if it has no list. Raises ProviderError."""
        self.check_ready()
        if (address := self.dialect.listing(self.endpoint)) is None:
            return ()
        with trio.move_on_after(self.bounds.stall):
            return await self._listed(address)
        raise self._failure(f"has not listed its models within {self.bounds.stall:g} s", "timeout")

    async def _listed(self, address: str) -> tuple[str, ...]:
        silence = self.bounds.silence
        patience = {"connect": min(CONNECT_SECONDS, silence), "read": silence, "write": silence, "pool": silence}
        headers = {**self.connect().headers, "accept": "application/json", "accept-encoding": ENCODINGS}
        headers |= self.dialect.headers(self._key, "")
        answered = False
        try:
            request = httpx.Request("GET", address, headers=headers, extensions={"timeout": patience})
            if self.authorizer is not None:
                await self._authorize(request, self.authorizer)
            response = await self.connect().send(request, stream=True)
            try:
                answered = response.is_success
                body, whole = await self._read(response, self.bounds.piece)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise self._broken(exc, answered=answered) from exc
        if not answered:
            text = body[:LONGEST_REFUSAL].decode(errors="replace")
            raise failures.refused(self.endpoint, response.status_code, response.headers, text, request.url.path)
        if not whole:
            raise self._too_long(self.bounds.piece)
        try:
            found = wire.as_object(wire.parse(body))
        except ValueError:
            hint = failures.hint(self.endpoint)
            raise self._failure(f"answered the question for its models with no JSON{hint}", "bad_response") from None
        entries = map(wire.as_object, wire.as_list(found.get("data")) or wire.as_list(found.get("models")))
        names = (wire.as_text(each.get("id") or each.get("name")) for each in entries)
        return tuple(name.removeprefix("models/") for name in names if name)

    def check_ready(self) -> None:
        """Refuse calls that a missing setting lets fail. Raises ProviderError."""
        if problem := self.endpoint.problem:
            cause: ProviderCause = "unauthorized" if self.endpoint.url_problem is None else "bad_address"
            problem = f"{self.endpoint.vendor.name}: {problem}; `warren models` lists the models that can be called"
            raise ProviderError(problem, cause=cause, retryable=False)

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that a model cannot be called with. Raises InvalidParamsError."""
        if options.effort is not None and options.reasoning_tokens is not None:
            raise FieldValueError("reasoning_tokens", "cannot be used together with `effort`").refusal()
        try:
            self.dialect.check(model, options)
        except FieldValueError as exc:
            raise exc.refusal() from None

    def _unsized(self, model: str) -> tuple[httpx.URL, httpx.Headers]:
        """Return the address and the headers of every request to a model, but for its length.

        They are kept, because parsing them takes as long as h11 does.
        """
        made = self._addresses.get(model)
        if made is None:
            if len(self._addresses) >= MOST_ADDRESSES:
                self._addresses.clear()
            made = self._addresses[model] = self._address(model)
        return made

    def _is_cut(self, model: str, answer: Answer, *, streamed: bool) -> bool:
        """Return whether an answer has no stop reason, and should have one."""
        # The reason of an answer in one piece may be our own; one of too many blocks was not read to its end.
        if not streamed or answer.blocks > MAX_BLOCKS or "finish_reason" in self.endpoint.without:
            return False
        ends = self._ends.get(model)
        if ends is None:
            if len(self._ends) >= MOST_ADDRESSES:
                self._ends.clear()
            ends = self._ends[model] = _Ends()
        if answer.reason:
            ends.told = True
        return not answer.reason and ends.cut(counted=answer.counted)

    def _address(self, model: str) -> tuple[httpx.URL, httpx.Headers]:
        url, headers = httpx.URL(self.dialect.url(self.endpoint, model)), httpx.Headers(self.connect().headers)
        headers.update(
            {
                "host": url.netloc.decode("ascii"),
                "content-type": "application/json",
                "accept": EVENTS,
                "accept-encoding": ENCODINGS,
                **self.dialect.headers(self._key, model),
            }
        )
        return url, headers

    @property
    def _key(self) -> str | None:
        """The key that the dialect sends."""
        return self.endpoint.key if self.authorizer is None else None

    async def _authorize(self, request: httpx.Request, authorizer: Authorizer) -> None:
        with trio.move_on_after(CREDENTIAL_SECONDS) as waiting:
            request.headers.update(await authorizer.headers(request))
        if waiting.cancelled_caught:
            name = self.endpoint.vendor.name
            problem = f"{name}: there were no credentials within {CREDENTIAL_SECONDS:g} s"
            raise ProviderError(problem, cause="timeout", retryable=True)

    def _request(self, model: str, body: "Pieces") -> httpx.Request:
        url, headers = self._unsized(model)
        request = httpx.Request("POST", url, headers=headers, stream=body.stream, extensions=self._extensions)
        request.headers["content-length"] = str(body.size)
        if (place := here.get()) is not None:
            request.headers[HEADER] = place.traceparent
        return request

    async def _exchange(
        self, model: str, body: "Pieces", answer: Answer, emit: Callable[[Emitted], None], entry: Entry
    ) -> None:
        """Send the request and read the answer; failures after the complete answer are ignored."""
        stall, answered = self.bounds.stall, False
        scope = trio.CancelScope(deadline=trio.current_time() + stall)
        most = min(OFF_THE_LOOP, self.bounds.piece)
        reading = _Reading(answer, emit, stall, scope, self._check_size, most, self._files_in, self.bounds.files)
        try:
            with reading.scope:
                request = self._request(model, body)
                if self.authorizer is not None:
                    await self._authorize(request, self.authorizer)
                response = await self.connect().send(request, stream=True)
                try:
                    answered = response.is_success
                    if not answered:
                        raise await self._refusal(response, entry)
                    headers = dict(response.headers.items())  # each look into httpx's own goes through all of them
                    entry.answered(headers)
                    await self._take(response, headers, reading)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            if not _is_whole(answer):
                raise self._broken(exc, answered=answered) from exc
        if reading.failure is not None:
            raise reading.failure
        if reading.body is not None:
            self._check_body(reading.body)
            if reading.body.too_long and not answer.complete:
                raise self._too_long(self.bounds.size)
        if reading.scope.cancelled_caught and not _is_whole(answer):
            raise self._failure(f"has sent nothing of its answer for {stall:g} s", "timeout")
        if not answer.complete or self._is_cut(model, answer, streamed=reading.streamed):
            raise self._failure("ended its answer half way", "stream_broken")

    async def _refusal(self, response: httpx.Response, entry: Entry) -> ProviderError:
        """Return the error for a status other than 200. One of the key's rate holds for all calls with the key."""
        body = b""
        # The status alone says enough.
        with suppress(httpx.HTTPError, ProviderError), trio.move_on_after(REFUSAL_SECONDS):
            body, _ = await self._read(response, LONGEST_REFUSAL)
        path, text = response.request.url.path, body.decode(errors="replace")
        error = failures.refused(self.endpoint, response.status_code, response.headers, text, path)
        if error.cause == "rate_limited" or (error.cause == "overloaded" and error.retry_after is not None):
            entry.refused(response.headers, error.retry_after)
        return error

    async def _take(self, response: httpx.Response, headers: Mapping[str, str], reading: "_Reading") -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        splitter = FrameSplitter(self.bounds.piece) if kind == FRAMES else Splitter(self.bounds.size)
        reading.body = DecodedBody(response, headers.get("content-encoding", ""), self.bounds.size, reading.scope)
        await self._stream(reading.body, reading, splitter)
        rest = splitter.end()
        if splitter.streams:
            if rest:
                await reading.take([event for event in rest if await parsed(wire.is_whole, event)])
            return
        body = b"".join(rest)  # whatever its type says, it is no stream
        if body.startswith((b"{", b"[")):
            reading.streamed = False
            await reading.take([body], reading.answer.whole)
        elif body or kind != EVENTS:
            reading.fail(failures.no_answer(self.endpoint, kind, body))
        error, wait = reading.failure, failures.retry_after(headers, datetime.now(UTC))
        if isinstance(error, ProviderError) and error.retry_after is None and wait is not None:
            error.details["retry_after"] = wait

    async def _read(self, response: httpx.Response, most: int) -> tuple[bytes, bool]:
        """Return at most `most` bytes of a body, and whether they are the whole body."""
        body = DecodedBody(response, response.headers.get("content-encoding", ""), most)
        taken = await body.read()
        self._check_body(body)
        return taken, not body.too_long

    def _check_body(self, body: "DecodedBody") -> None:
        if body.problem is not None:
            raise self._failure(body.problem, "bad_response")

    async def _stream(self, body: "DecodedBody", reading: "_Reading", splitter: Splitter | FrameSplitter) -> None:
        """Feed the events of a stream to the answer until the stream ends or the answer is closed.

        Leaving the loop early would strand httpx's generators half way, which trio rightly complains about. So failures
        are noted, and cancelling the scope of the reading unwinds them from the inside.
        """
        async for raw in body.raw:
            size = reading.answer.size
            for part in body.decoded(raw):
                await reading.take(splitter.feed(part))
                if splitter.too_long:
                    reading.fail(self._too_long(splitter.most))
            if not body.ended:  # changing a deadline takes as long as reading an event
                reading.wait(size)
        self._check_body(body)

    def _files_in(self, data: bytes) -> int:
        """Return the bytes of the files in an event, or a body. Raises ProviderError if the rest is too large."""
        if len(data) <= self.bounds.piece:
            return 0
        rest = weight_without_files(data, self.bounds.piece)
        if rest > self.bounds.piece:
            raise self._too_long(self.bounds.piece)
        return len(data) - rest

    def _check_size(self, answer: Answer) -> None:
        """Raise ProviderError if an answer has too many texts and arguments."""
        if answer.size > self.bounds.content:
            raise self._too_long(self.bounds.content)

    def _too_long(self, most: int) -> ProviderError:
        return self._failure(f"sent more than {most} bytes, the bound of limits.max_answer", "too_long")

    def _broken(self, exc: Exception, *, answered: bool) -> ProviderError:
        """Return the error for a failed connection."""
        for kinds, problem, cause in _BREAKS:
            if isinstance(exc, kinds):
                return self._failure(problem, cause)
        if isinstance(exc, httpx.TimeoutException):
            return self._failure(f"was silent for {self.bounds.silence:g} s", "timeout")
        if answered:
            return self._failure("broke the connection during its answer", "stream_broken")
        if isinstance(exc, httpx.ReadError | httpx.RemoteProtocolError):
            return self._failure("closed the connection without an answer", "connection")
        if "CERTIFICATE_VERIFY_FAILED" in str(exc):
            return self._failure("has a certificate that cannot be verified", "certificate")
        return self._failure(f"cannot be reached: {str(exc) or type(exc).__name__}", "connection")

    def _failure(self, problem: str, cause: ProviderCause) -> ProviderError:
        vendor = self.endpoint.vendor.name
        return ProviderError(
            f"{vendor} at {self.endpoint.host} {problem}",
            cause=cause,
            retryable=cause not in _FOR_GOOD,
            details={"provider": vendor},
        )


def _transcript_of(messages: Sequence[Message]) -> Transcript | None:
    """Return the conversation that messages belong to; None for messages of their own."""
    if isinstance(messages, Transcript):  # first: for another class of sequences the question takes ten times as long
        return messages
    return _transcript_of(messages.context) if isinstance(messages, Continued) else None


@frozen
class Pieces(httpx.AsyncByteStream):
    """The body of a request in pieces, which go out at the pace of all large requests.

    The bytes of files are read piece by piece while they are sent, so that no request has a copy of them.

    Attributes:
        pieces: the pieces, and the files that go out in base64.
        pace: the pace.
        read: reads the files.
    """

    pieces: Sequence[Part]
    pace: RequestPace
    read: ReadFile = NO_FILES.read

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(len(each) if isinstance(each, bytes) else -(-each.size // 3) * 4 for each in self.pieces)

    @property
    def stream(self) -> httpx.AsyncByteStream:
        """The body for httpx. One piece of bytes alone waits for nothing, and goes out as it is."""
        first = self.pieces[0]
        return httpx.ByteStream(first) if len(self.pieces) == 1 and isinstance(first, bytes) else self

    @property
    def weight(self) -> int:
        """Bytes of the body for estimates of its tokens: each file counts as a text of some tokens."""
        return sum(len(each) if isinstance(each, bytes) else ATTACHED for each in self.pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Begin with the first piece."""
        return _Rest(self, iter(self.pieces))


@define(eq=False)
class _Rest:
    """The pieces that have not gone out. It is no generator, so that a request that fails may leave it half way."""

    body: Pieces
    pieces: Iterator[Part]
    begun: bool = False
    file: Attachment | None = None
    place: int = 0  # in the file

    def __aiter__(self) -> "_Rest":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._of_file() if self.file is not None else next(self.pieces, None)
        if isinstance(piece, Attachment):
            self.file, self.place = piece, 0
            piece = await self._of_file()
        if piece is None:
            raise StopAsyncIteration
        if self.begun:  # the first one is the only one, or small
            await self.body.pace.piece(self.body)
        self.begun = True
        return piece

    async def _of_file(self) -> bytes:
        """Return the next piece of the file in base64."""
        file, size = self.file, STEP
        assert file is not None  # noqa: S101 - for the type checker
        data = await self.body.read(file, self.place, size)
        self.place += len(data)
        if self.place >= file.size or not data:
            self.file = None
        return b2a_base64(data, newline=False)


async def with_texts(parts: list[Part], read: ReadFile) -> list[Part]:
    """Return the parts of a body with the words of texts in their places. Raises StoreError if they cannot be read."""
    return [
        letters((await read(each, 0, each.size)).decode(errors="replace"))
        if isinstance(each, Attachment) and each.kind == "text"
        else each
        for each in parts
    ]


@define(eq=False)
class DecodedBody:
    """The decompressed body of a response, up to a bound. It is decompressed in steps: few bytes may become many.

    Cancelling `scope` ends the reading early: that unwinds httpx's generators from the inside. So whoever reads goes on
    to the end of `raw`.

    Attributes:
        response: the response.
        encoding: its content encoding, as its head has it; empty without one.
        left: bytes that may still be read.
        scope: the cancel scope around the reading.
        too_long: whether the body is longer than its bound.
        problem: the reason if the body cannot be read.
    """

    response: httpx.Response
    encoding: str
    left: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    too_long: bool = False
    problem: str | None = None

    _inflate: Any = attrs.field(init=False)  # None for a body that is not compressed

    @_inflate.default
    def _decoder(self) -> Any:
        if not self.encoding or self.response.is_stream_consumed:
            return None
        encoding = self.encoding.strip().lower()
        if encoding in ("", "identity"):
            return None
        if encoding not in ("gzip", "x-gzip", "deflate"):
            self._stop(f"answered in the encoding {encoding!r}, which was not asked for")
        return zlib.decompressobj(zlib.MAX_WBITS | 32)

    @property
    def raw(self) -> httpx.AsyncByteStream:
        """The body as it arrives. A transport may have read and decompressed the whole body already."""
        if self.response.is_stream_consumed:
            return httpx.ByteStream(self.response.content)
        assert isinstance(self.response.stream, httpx.AsyncByteStream)  # noqa: S101 - for the type checker
        return self.response.stream

    @property
    def ended(self) -> bool:
        """Whether nothing follows, if that is known: the streams of other clients than our own do not tell."""
        return getattr(self.response.stream, "ended", False)

    def decoded(self, raw: bytes) -> Iterable[bytes]:
        """Return the decompressed bytes of a part of `raw`, at most 64 KiB at once if it is compressed."""
        if self.problem is not None or self.too_long:
            return ()
        return (self._counted(raw),) if self._inflate is None else self._inflated(raw)

    async def read(self) -> bytes:
        """Return the bytes up to the bound; afterwards `too_long` and `problem` say whether any are missing."""
        parts = list[bytes]()
        with self.scope:
            async for raw in self.raw:
                parts.extend(self.decoded(raw))  # they stay if the reading is cancelled
        return b"".join(parts)

    def _inflated(self, raw: bytes) -> Iterator[bytes]:
        try:
            while raw and not self.too_long:
                yield self._counted(self._inflate.decompress(raw, INFLATED))
                raw = self._inflate.unconsumed_tail
        except zlib.error:
            self._stop("sent data that cannot be decompressed")

    def _counted(self, part: bytes) -> bytes:
        if len(part) > self.left:
            self.too_long = True
            self.scope.cancel()
            part = part[: self.left]
        self.left -= len(part)
        return part

    def _stop(self, problem: str) -> None:
        self.problem = problem
        self.scope.cancel()


async def parsed(parse: Callable[[bytes], T], data: bytes) -> T:
    """Parse JSON, in a thread if it is large. A cancellation waits for the thread."""
    return parse(data) if len(data) < OFF_THE_LOOP else await beside(partial(parse, data))


async def beside(work: Callable[[], T]) -> T:
    """Run some work on much data in a thread. A cancellation waits for the thread."""
    # Shielded: an interrupt that has come by now finds an answer that is there, as with one that needs no thread.
    with trio.CancelScope(shield=True):
        found = await trio.to_thread.run_sync(work)
    return found  # noqa: RET504 - mypy assumes that the scope may swallow an error


def _is_whole(answer: Answer) -> bool:
    """Return whether an answer is whole as it is; text behind a stop reason says that there is more."""
    return answer.complete and answer.size <= answer.ended_at


@define
class _Reading:
    """Feeds events to an answer and emits its pieces; on the first failure it keeps the error and ends the reading.

    Texts that arrive together are emitted as one piece: nobody could see the first of them earlier than the last.

    Attributes:
        answer: the answer.
        emit: takes its pieces.
        stall: seconds for which nothing of the answer may come.
        scope: the cancel scope around the request and its answer.
        check: raises ProviderError for an answer that has become too large.
        most: bytes of an event that is parsed on the event loop.
        files_in: returns the bytes of the files in an event. It raises ProviderError if the rest is too large.
        files: bytes of files that may still come, which do not count for the bound of the body.
        failure: the reason why the reading was ended.
        body: the body of the answer.
        streamed: whether the body is a stream.
    """

    answer: Answer
    emit: Callable[[Piece], None]
    stall: float
    scope: trio.CancelScope
    check: Callable[[Answer], None]
    most: int
    files_in: Callable[[bytes], int]
    files: int
    failure: Exception | None = None
    body: DecodedBody | None = None
    streamed: bool = True

    def fail(self, error: Exception) -> None:
        """End the reading, because of its first error."""
        self.failure = self.failure or error
        self.scope.cancel()

    async def take(self, events: list[bytes], feed: Callable[[bytes], None] | None = None) -> None:
        """Feed the events that have arrived together; `feed` is the answer's way to take them, if not the usual one."""
        if self.failure is not None or not events:
            return
        answer = self.answer
        feed = feed or answer.feed
        try:
            try:
                for data in events:
                    if len(data) <= self.most:
                        feed(data)
                    else:
                        await self._large(data, feed)
            finally:
                for piece in answer.said.taken():
                    self.emit(piece)
            self.check(answer)
            if answer.blocks > MAX_BLOCKS:  # no more are kept: the turn tells the model, or fails
                answer.complete, answer.ended_at = True, answer.size
                self.scope.cancel()
        except Exception as exc:  # noqa: BLE001 - raised when the reading has ended
            self.fail(exc)

    async def _large(self, data: bytes, feed: Callable[[bytes], None]) -> None:
        """Feed a large event, on a thread. The files in it make room for as many bytes of the body."""
        files = min(await beside(partial(self.files_in, data)), self.files)
        if self.body is not None:
            self.files -= files
            self.body.left += files
        await parsed(feed, data)

    def wait(self, size: int) -> None:
        """Set the time for more of the answer, which had this size before its newest part."""
        answer, grown = self.answer, self.answer.size > size
        # Text behind a stop reason says that there is more; else token counts and the end are not waited for as long.
        if answer.complete and answer.size <= answer.ended_at:
            left = CLOSE_SECONDS if answer.closed else USAGE_SECONDS
            until = trio.current_time() + min(left, self.stall)  # anew if each part of the text has a stop reason
            self.scope.deadline = until if grown else min(self.scope.deadline, until)
        elif grown:
            self.scope.deadline = trio.current_time() + self.stall
