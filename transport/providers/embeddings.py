"""Embeddings from any server with OpenAI's `/embeddings` endpoint: in batches, with retries, all or nothing.

Of a text over the server's window the parts are embedded, and their vectors averaged.
"""

import logging
import math
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import count, islice
from typing import Any, Final, TypeGuard

import attrs
import httpx
import trio

from warren.base.errors import ProviderCause, ProviderError
from warren.base.values import define
from warren.conversation import codec
from warren.settings.config import RetryPolicy
from warren.transport.providers import failures, remote, wire
from warren.transport.providers.http.client import new_client
from warren.transport.providers.settings import OPENAI, ModelEndpoint, endpoint

logger: Final = logging.getLogger("warren.memory")
BATCH: Final = 64
LONGEST: Final = 6_000
"""Characters of a text that are embedded. The memory keeps the whole text."""
SHORTEST: Final = 64
"""Characters of a part that no refusal halves any more."""
UNCLEAR: Final = 512
"""Characters of a text that is halved even if the refusal does not say that it is too long."""
TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0, pool=None)
ANSWER_SECONDS: Final = 120.0
"""The most seconds for a whole answer: a server that trickles bytes would never hit the timeout for silence."""
LONGEST_VECTOR: Final = 256 * 1024
"""Bytes of JSON that a server may send for each text: about 10,000 numbers in full precision."""
RETRY: Final = RetryPolicy(max_attempts=4, initial_delay=0.25, max_retry_after=5.0)


@define
class RemoteEmbedder:
    """An Embedder behind HTTP.

    Attributes:
        endpoint: the address and the key.
        model: the model's name on the server.
        client: the HTTP client.
        retry: the retries of a failed call.
        dimensions: numbers in each vector; 0 until the first answer.
        longest: characters of a text that the server takes, as its refusals have taught.
    """

    endpoint: ModelEndpoint
    model: str
    client: httpx.AsyncClient = attrs.field(repr=False)
    retry: RetryPolicy = RETRY
    dimensions: int = 0
    longest: int = LONGEST

    @property
    def name(self) -> str:
        """The vendor and the model."""
        return f"{OPENAI.name}:{self.model}"

    async def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        """Return the vectors of texts, in order. Of a longer text, the first 6,000 characters count.

        If the server refuses a text as too long, its halves are embedded, and their vectors averaged; so on, and for
        later texts of that length from the beginning.

        Raises:
            ProviderError: if a batch failed on its last attempt; there are no vectors at all then.
        """
        vectors: list[list[float]] = []
        for start in range(0, len(texts), BATCH):
            vectors += await self._fitting([text.strip()[:LONGEST] for text in texts[start : start + BATCH]], LONGEST)
        return vectors

    async def _fitting(self, texts: Sequence[str], longest: int) -> list[list[float]]:
        """Return the vectors of texts, of each one over `longest` characters by its parts. Raises ProviderError."""
        longest = min(longest, self.longest)
        if max(map(len, texts)) > longest:
            split = [list(_parts(text, longest)) for text in texts]
            parts = [part for each in split for part in each]
            found: list[list[float]] = []
            for at in range(0, len(parts), BATCH):
                found += await self._fitting(parts[at : at + BATCH], longest)
            rest = iter(found)
            return [_average(list(islice(rest, len(each))), list(map(len, each))) for each in split]
        try:
            return await self._batch(texts)
        except ProviderError as exc:
            if not _may_be_too_long(exc, texts):
                raise
        if len(texts) == 1:
            longest = (len(texts[0]) + 1) // 2
            found = await self._fitting(texts, longest)
            self.longest = min(self.longest, longest)  # the text may have been refused for something else
            return found
        middle = len(texts) // 2
        return [*await self._fitting(texts[:middle], longest), *await self._fitting(texts[middle:], longest)]

    async def _batch(self, texts: Sequence[str]) -> list[list[float]]:
        for attempt in count(1):
            try:
                return await self._call(texts)
            except ProviderError as exc:
                wait = self.retry.backoff.delay(attempt) if exc.retry_after is None else exc.retry_after
                too_long = exc.retry_after is not None and exc.retry_after > self.retry.max_retry_after
                if not exc.retryable or attempt == self.retry.max_attempts or too_long:
                    raise
            await trio.sleep(wait)
        raise AssertionError  # count() has no end

    async def _call(self, texts: Sequence[str]) -> list[list[float]]:
        key = self.endpoint.key
        headers = {"content-type": "application/json", "accept-encoding": remote.ENCODINGS} | (
            {"authorization": f"Bearer {key}"} if key else {}
        )
        body = codec.encode({"model": self.model, "input": list(texts)})
        try:
            with trio.fail_after(ANSWER_SECONDS):
                async with self.client.stream(
                    "POST", f"{self.endpoint.url}/embeddings", content=body, headers=headers, timeout=TIMEOUT
                ) as response:
                    answer = await self._read(response, LONGEST_VECTOR * len(texts))
        except trio.TooSlowError as exc:
            raise self._failure("did not answer in time", "timeout", retryable=True) from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise self._broken(exc) from exc
        return await remote.parsed(lambda raw: self._vectors(wire.parse_object(raw), len(texts)), answer)

    async def _read(self, response: httpx.Response, most: int) -> bytes:
        """Return the body of an answer. Raises ProviderError if it is an error or longer than `most` bytes."""
        body = remote.DecodedBody(
            response,
            response.headers.get("content-encoding", ""),
            most if response.is_success else remote.LONGEST_REFUSAL,
        )
        taken = await body.read()
        if not response.is_success:
            path, text = response.request.url.path, taken.decode(errors="replace")
            raise failures.refused(self.endpoint, response.status_code, response.headers, text, path)
        if body.problem is not None:
            raise self._failure(body.problem, "bad_response")
        if body.too_long:
            raise self._failure(f"sent more than {most} bytes", "too_long")
        return taken

    def _vectors(self, answer: Mapping[str, Any], wanted: int) -> list[list[float]]:
        """Return the vectors of an answer by their indexes. Raises ProviderError for a malformed answer."""
        rows = [wire.as_object(row) for row in wire.as_list(answer.get("data"))]
        found = {wire.as_count(row.get("index", place)): row.get("embedding") for place, row in enumerate(rows)}
        vectors = [vector for place in range(wanted) if _is_vector(vector := found.get(place))]
        if len(rows) != wanted or len(vectors) != wanted:
            raise self._failure(f"did not answer {wanted} texts with {wanted} vectors", "bad_response")
        lengths = {len(vector) for vector in vectors}
        if self.dimensions and lengths != {self.dimensions}:
            raise self._failure(f"answered with vectors of other than {self.dimensions} numbers", "bad_response")
        return vectors

    def _broken(self, exc: Exception) -> ProviderError:
        """Return the error for a failed connection."""
        if isinstance(exc, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return self._failure("cannot be called: the request is not valid HTTP", "bad_address")
        if isinstance(exc, httpx.TimeoutException):
            return self._failure("did not answer in time", "timeout", retryable=True)
        return self._failure(f"cannot be reached: {str(exc) or type(exc).__name__}", "connection", retryable=True)

    def _failure(self, problem: str, cause: ProviderCause, *, retryable: bool = False) -> ProviderError:
        vendor = self.endpoint.vendor.name
        text = f"{vendor} at {self.endpoint.host} {problem} (embeddings of {self.model})"
        return ProviderError(text, cause=cause, retryable=retryable, details={"provider": vendor})


def _may_be_too_long(error: ProviderError, texts: Sequence[str]) -> bool:
    """Tell whether fewer texts, or a shorter one, may succeed after a refusal."""
    if error.retryable or error.cause not in ("context_length", "too_large", "bad_request"):
        return False
    longest = max(map(len, texts))
    return longest > (UNCLEAR if error.cause == "bad_request" else SHORTEST) or (
        len(texts) > 1 and error.cause != "bad_request"
    )


def _parts(text: str, longest: int) -> Iterator[str]:
    """Split a text into parts of about the same length, between words if it has any."""
    while len(text) > longest:
        size = -(-len(text) // -(-len(text) // longest))
        space = text.rfind(" ", size // 2, size)
        end = size if space < 0 else space + 1
        yield text[:end]
        text = text[end:]
    yield text


def _average(vectors: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Return the mean direction of vectors, each with its weight."""
    if len(vectors) == 1:
        return list(vectors[0])
    scales = [weight / (math.hypot(*vector) or 1.0) for vector, weight in zip(vectors, weights, strict=True)]
    total = sum(weights)
    columns = zip(*vectors, strict=True)
    return [sum(map(operator.mul, column, scales)) / total for column in columns]


def _is_vector(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and bool(value) and all(type(number) in (int, float) for number in value)


async def _unknown() -> int:
    return 0


@asynccontextmanager
async def open_remote(
    model: str,
    environ: Mapping[str, str],
    client: httpx.AsyncClient | None = None,
    *,
    retry: RetryPolicy = RETRY,
    known: Callable[[], Awaitable[int]] = _unknown,
) -> AsyncIterator[RemoteEmbedder]:
    """Open an embedding model of the server at OPENAI_BASE_URL, and call it once for the length of its vectors.

    Args:
        model: the model's name on the server.
        environ: the variables with the key and the address.
        client: replaces the HTTP client; the caller closes it.
        retry: the retries of a failed call.
        known: returns the length of the vectors if the server does not answer now but may later; 0 if it is unknown.

    Raises:
        ProviderError: if the length cannot be learnt, or the key or the address is missing.
    """
    place = endpoint(OPENAI, environ)
    if problem := place.problem:
        cause: ProviderCause = "unauthorized" if place.url_problem is None else "bad_address"
        raise ProviderError(f"{OPENAI.name}: {problem}", cause=cause, retryable=False)
    async with new_client() if client is None else nullcontext(client) as connection:
        asking = RemoteEmbedder(place, model, connection, retry)
        yield attrs.evolve(asking, dimensions=await _dimensions(asking, known))


async def _dimensions(embedder: RemoteEmbedder, known: Callable[[], Awaitable[int]]) -> int:
    try:
        (vector,) = await embedder.embed(["dimensions"])
    except ProviderError as exc:
        length = await known() if exc.retryable else 0
        if not length:
            raise
        logger.warning("%s. Until the server answers, texts get no vector and searches match words only", exc)
        return length
    return len(vector)
