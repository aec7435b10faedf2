"""Facts in a refusal of a request that is too long: the server's limits, and its count of the request. No I/O.

The wordings are those of the servers' sources and of errors that their users have reported, as of October 2026:
OpenAI and Azure (chat, responses, embeddings), Anthropic, Bedrock, Gemini and Vertex AI, vLLM, SGLang, TGI, TEI,
llama.cpp, llama-cpp-python, Ollama, LM Studio, Mistral, Groq, xAI, Together, OpenRouter, DeepSeek, Moonshot, MiniMax,
Z.ai, DashScope, Cohere and Titan on Bedrock, Voyage, Jina and NIM.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

PLAUSIBLE: Final = range(32, 100_000_001)
"""Numbers that may be a limit or a count of tokens."""
_NUMBER: Final = r"(\d[\d,_]{0,15})"  # Python reads no number of thousands of digits
_LENGTH: Final = r"(?:context|prompt|input|model|sequence)[\s_-](?:length|window|size|limit)"
_OF_THE: Final = r"(?:max\w*|model'?s|available|configured|loaded with|exceeds?(?: the)?) (?:allowed )?"
_TOO_LONG: Final = re.compile(
    rf"""
    prompt\s(?:is\s)?too\slong
    | (?:inputs?|prompt|text|messages?|request)\b.{{0,60}}?\bis\stoo\s(?:long|large)
    | request\stoo\slarge\sfor | too\smany\s(?:input\s)?tokens | token\slimit\sexceeded
    | exceed\w*\b.{{0,60}}?\b(?:{_LENGTH}|token\slimit|max\w*\s(?:number\sof\s|allowed\s)?(?:input\s)?tokens?)
    | (?:max\w*|longer\sthan|greater\sthan|larger\sthan)\b.{{0,30}}?\b(?:{_LENGTH}|context\ssize)
    | exceed\w*\smax\w*\slength\sof\s\d+\stokens | context_(?:length|window)_exceeded
    | (?:max\w*\slength|{_LENGTH})\b.{{0,30}}?\b(?:is\sonly|exceed)
    | context\s(?:length|window|size|limit)\b.{{0,20}}?\bof\sonly
    | prompt\sexceeds\smax\slength | configured\s(?:context\ssize|limit)\s(?:is|of)
    | token\scount\b.{{0,40}}?\b(?:exceeds|but\smodel\sonly) | tokens\sin\srequest\smore\sthan
    | reduce\sthe\slength\sof\sthe\s(?:messages|input|prompt) | range\sof\sinput\slength
    | must\shave\sless\sthan\s\d+\stokens | tokens?\b.{{0,40}}?\bmust\sbe\s<=?\s\d+
    | max(?:imum)?\s(?:input|allowed|[\d,]+)\stokens
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_OTHER: Final = re.compile(r"\b(?:images?|pictures?|files?|pdf|audio|video|array)\b", re.IGNORECASE)
"""Other things that may be too large: a text about them that counts no tokens is not about the whole request."""
_WINDOW: Final = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\+ [\d,]+ > {_NUMBER}",
        rf"> {_NUMBER} maximum",
        rf"max\w* length of {_NUMBER} tokens",
        rf"(?:with|of) {_NUMBER} maximum {_LENGTH}",
        rf"{_OF_THE}{_LENGTH}(?! by)\D{{0,24}}?{_NUMBER}",
        rf"max\w* number of (?:input )?tokens allowed \(?{_NUMBER}",
        rf"only supports up to {_NUMBER}",
        rf"(?:exceeds? (?:the )?|configured )limit of {_NUMBER}",
        rf"token (?:limit|size):? {_NUMBER}",
        rf"input length should be \[\d+, ?{_NUMBER}",
        rf"less than {_NUMBER} tokens",
        rf"must (?:be <=?|not exceed) {_NUMBER}",
        rf"max(?:imum)?(?: allowed)?(?: input)? tokens(?: per (?:submitted )?(?:request|batch))?(?: is|:)? {_NUMBER}",
        rf"max(?:imum)? {_NUMBER} tokens",
        rf"limit:? {_NUMBER}, requested",
        rf"current batch size: {_NUMBER}",
    )
]
_COUNTED: Final = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\({_NUMBER} (?:in|of)(?: the| your)? (?:messages|prompt|text input|input)",
        rf"limit: {_NUMBER} \+",
        rf"{_NUMBER} tokens? >",
        rf"token count(?: of| is|:)? ?\(?{_NUMBER}",
        rf"(?:passed|has) {_NUMBER} input tokens",
        rf"(?:resulted in|contains?|has|requested(?: about)?|request|input|batch has) \(?{_NUMBER} tokens",
        rf"input length \(?{_NUMBER}\)? exceeds",
        rf"\(requested:? {_NUMBER}\)|limit:? [\d,]+, requested {_NUMBER}|given:? {_NUMBER}|prompt \(length {_NUMBER}\)",
    )
]
_OUTPUT: Final = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"supports at most {_NUMBER} (?:completion|output) tokens",
        rf"> {_NUMBER},? which is the maximum allowed number of output tokens",
        rf"valid range of max_(?:completion_)?tokens is \[\d+, ?{_NUMBER}",
        rf"max_(?:completion_|output_)?tokens\W.{{0,24}}?(?:less than or equal to|limited to) \W?{_NUMBER}",
    )
]


def is_too_long(message: str) -> bool:
    """Tell whether a server's message says that a request is longer than the model's window."""
    if not _TOO_LONG.search(message) or _first(_OUTPUT, message) is not None:
        return False
    return "token" in message.lower() or not _OTHER.search(message)


def never_fits(message: str) -> bool:
    """Tell whether a rate limit is below the request alone, so that no waiting helps: as OpenAI and Groq say it."""
    window, counted = _first(_WINDOW, message), _first(_COUNTED, message)
    large = "request too large for" in message.lower()
    return large and window is not None and counted is not None and counted > window


def numbers(message: str, error: Mapping[str, Any], *, too_long: bool) -> dict[str, int]:
    """Return the numbers that a refusal tells, each if it does.

    Args:
        message: the server's message.
        error: its error object.
        too_long: whether the request is longer than the server takes.

    Returns:
        `window`: the tokens that a request may have; `counted`: those that this one had, by the server's count;
        `max_output`: the tokens that an answer may have, if more were asked for.
    """
    if not too_long:
        output = _first(_OUTPUT, message)
        return {} if output is None else {"max_output": output}
    found = {
        "window": _plausible(error.get("n_ctx")) or _first(_WINDOW, message),
        "counted": _plausible(error.get("n_prompt_tokens")) or _first(_COUNTED, message),
    }
    return {name: number for name, number in found.items() if number is not None}


def _first(patterns: list[re.Pattern[str]], message: str) -> int | None:
    for pattern in patterns:
        for match in pattern.finditer(message):
            digits = next(filter(None, match.groups()))
            if (number := _plausible(int(re.sub(r"[,_]", "", digits)))) is not None:
                return number
    return None


def _plausible(number: object) -> int | None:
    return number if isinstance(number, int) and number in PLAUSIBLE else None
