"""Reads recordings with the vendors' own clients: `python official.py URL`, in an environment that has these alone.

The rows on the standard input have the number of a recording, its protocol, its model and its content type. Each
line on the standard output has the number, and what the client has read: see `normal.Normal`. With `types` in place of
the address the rows are bodies of requests, and the lines say what the published types have against them.
"""

import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

Data = dict[str, Any]
STREAM: Final = "text/event-stream"
CHAT_STOPS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
    "stop": "end_turn",
}
MESSAGES_STOPS: Final = {
    "refusal": "content_filter",
    "model_context_window_exceeded": "max_tokens",
    "compaction": "pause_turn",
}
GEMINI_STOPS: Final = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens"}
GEMINI_BROKEN: Final = {
    "MALFORMED_FUNCTION_CALL",
    "MALFORMED_RESPONSE",
    "MISSING_THOUGHT_SIGNATURE",
    "OTHER",
    "TOO_MANY_TOOL_CALLS",
    "UNEXPECTED_TOOL_CALL",
}
PLAIN: Final = (
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "message",
    "reasoning",
    "function_call",
    "image_generation_call",
)
STANDARD: Final = str.maketrans("-_", "+/")
"""The alphabet of base64 in which the server writes; the client shows bytes in that for addresses."""
TAGGED: Final = re.compile(r"\s*<think>(.*?)(?:</think>(.*))?", re.DOTALL)
"""A text with reasoning at its head, which the client leaves to its user."""
EXTENSIONS: Final = ("reasoning", "reasoning_content", "reasoning_details", "extra_content")
"""Members of messages that servers of other makers want back, and that OpenAI's types do not have."""


@lru_cache
def client_of(module: str, name: str) -> Any:
    """Return a client, whose certificates take longer to read than an answer."""
    return getattr(import_module(module), name)(api_key="none", max_retries=0)


@lru_cache
def google_client() -> Any:
    """Return Google's client."""
    return import_module("google.genai").Client(api_key="none", vertexai=False)


def plain(model: Any) -> Data:
    """Return the data of a client's object."""
    data: Data = model.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return data


def normal(**read: Any) -> Data:
    """Return the normal form with what was read."""
    return {
        "text": "",
        "reasoning": "",
        "calls": [],
        "stop": None,
        "usage": None,
        "sources": [],
        "hosted": [],
        "files": 0,
        "owed": [],
        "error": None,
    } | read


def sources(data: object) -> list[str]:
    """Return the addresses in the sources of a text, each once."""
    found: list[str] = []
    if isinstance(data, Mapping):
        for name, value in data.items():
            if name in ("url", "uri") and isinstance(value, str):
                found.append(value)
            found += sources(value)
    elif isinstance(data, list):
        for each in data:
            found += sources(each)
    return list(dict.fromkeys(found))


def arguments(text: Any) -> Any:
    """Return the arguments of a call: an object, or the text if it is none."""
    if isinstance(text, Mapping):
        return text
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return text
    return data if isinstance(data, dict) else {} if data is None else text


def chat(url: str, model: str, kind: str) -> Data:
    """Read an answer in chat completions."""
    client = client_of("openai", "OpenAI").with_options(base_url=f"{url}/v1")
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    if kind == STREAM:
        answer = assembled(map(plain, client.chat.completions.create(**asked, stream=True)))
    else:
        answer = plain(client.chat.completions.create(**asked))
    choice = answer["choices"][0]
    message, usage = choice["message"], answer.get("usage") or {}
    calls = [
        {"name": each["function"]["name"], "args": arguments(each["function"].get("arguments"))}
        for each in message.get("tool_calls") or ()
    ]
    stop = CHAT_STOPS.get(choice.get("finish_reason"), choice.get("finish_reason"))
    content = message.get("content") or ""
    thoughts = "".join(
        part["text"]
        for each in (content if isinstance(content, list) else ())
        if each["type"] == "thinking"
        for part in each["thinking"]
    )
    if isinstance(content, list):
        content = "".join(each.get("text", "") for each in content)
    parts = message.get("reasoning_details") or ()
    thoughts = thoughts or "".join(each.get("text") or each.get("summary") or "" for each in parts)
    details = usage.get("prompt_tokens_details") or {}
    if tagged := TAGGED.fullmatch(content):
        thoughts, content = tagged[1].strip(), (tagged[2] or "").lstrip()
    return normal(
        text=content + (message.get("refusal") or ""),
        reasoning=message.get("reasoning_content") or message.get("reasoning") or thoughts,
        calls=calls,
        stop="tool_use" if calls and stop == "end_turn" else stop,
        usage=[usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens") or 0],
        files=len(message.get("images") or ()),
        owed=[*chat_owed(message)],
    )


def assembled(chunks: Iterable[Data]) -> Data:
    """Return the answer that chunks make. The client's own assembly refuses what most servers send."""
    message: Data = {"content": ""}
    calls: dict[int, Data] = {}
    answer: Data = {"choices": [{"message": message}]}
    for chunk in chunks:
        answer["usage"] = chunk.get("usage") or answer.get("usage")
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            if choice.get("finish_reason"):
                answer["choices"][0]["finish_reason"] = choice["finish_reason"]
            delta = choice.get("delta") or {}
            for name in ("content", "refusal", "reasoning", "reasoning_content", "reasoning_details", "images"):
                if delta.get(name):
                    message[name] = joined(message.get(name), delta[name])
            for fragment in delta.get("tool_calls") or ():
                place = fragment.get("index", len(calls))
                call = calls.setdefault(place, {"function": {"name": "", "arguments": ""}})
                call |= {name: fragment[name] for name in ("id", "extra_content") if fragment.get(name)}
                function = fragment.get("function") or {}
                call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
    message["tool_calls"] = [*calls.values()]
    return answer


def joined(before: Any, more: Any) -> Any:
    """Return a member with what came behind it; a text and a list of parts are parts."""
    if not before or type(before) is type(more):
        return before + more if before else more
    return [
        part
        for each in (before, more)
        for part in ([{"type": "text", "text": each}] if isinstance(each, str) else each)
    ]


def chat_owed(message: Data) -> Iterator[str]:
    """Yield the texts that have to go back with a message."""
    for each in message.get("reasoning_details") or ():
        yield from (each[name] for name in ("signature", "data") if each.get(name))
    if message.get("reasoning_content"):
        yield message["reasoning_content"]
    for each in [message, *(message.get("tool_calls") or ())]:
        google = (each.get("extra_content") or {}).get("google") or {}
        yield from filter(None, [google.get("thought_signature")])


def responses(url: str, model: str, kind: str) -> Data:
    """Read an answer in OpenAI's responses."""
    client = client_of("openai", "OpenAI").with_options(base_url=f"{url}/v1")
    if kind == STREAM:
        answer, sealed = None, dict[str, Any]()
        for event in client.responses.create(model=model, input="hello", stream=True):
            if event.type == "response.output_item.done":  # the end of the answer has it sealed anew
                sealed[event.item.id or ""] = getattr(event.item, "encrypted_content", None)
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                answer = plain(event.response)
            if event.type == "error":
                return normal(error="in the answer")
        if answer is None:
            return normal(error="broken")
        for item in answer["output"]:
            item.update({"encrypted_content": own} if (own := sealed.get(item.get("id"))) else {})
    else:
        answer = plain(client.responses.create(model=model, input="hello"))
    if answer.get("error") or answer.get("status") == "failed":
        return normal(error="in the answer")
    items, usage = answer["output"], answer.get("usage") or {}
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    thoughts = [item.get("summary") or item.get("content") or [] for item in items if item["type"] == "reasoning"]
    calls = [
        {"name": item["name"], "args": arguments(item["arguments"])}
        for item in items
        if item["type"] == "function_call"
    ]
    reason = (answer.get("incomplete_details") or {}).get("reason")
    stops = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}
    details = usage.get("input_tokens_details") or {}
    hosted = [item for item in items if item["type"] not in PLAIN]
    pictures = [item for item in items if item["type"] == "image_generation_call"]
    return normal(
        text="".join(part.get("text") or part.get("refusal") or "" for part in parts),
        reasoning="".join("\n\n".join(part["text"] for part in each) for each in thoughts),
        calls=calls,
        stop=stops.get(str(reason), "tool_use" if calls else "end_turn"),
        usage=[usage.get("input_tokens"), usage.get("output_tokens"), details.get("cached_tokens") or 0],
        sources=sources([part.get("annotations") for part in parts]),
        hosted=[item["type"] for item in hosted],
        files=sum(bool(item.get("result")) for item in pictures),
        owed=[item["encrypted_content"] for item in items if item.get("encrypted_content")]
        + [item["id"] for item in [*hosted, *pictures] if item.get("id")],
    )


def messages(url: str, model: str, kind: str) -> Data:
    """Read an answer in Anthropic's messages."""
    client = client_of("anthropic", "Anthropic").with_options(base_url=url)
    asked: Any = {"model": model, "max_tokens": 1000, "messages": [{"role": "user", "content": "hello"}]}
    if kind == STREAM:
        with client.beta.messages.stream(**asked) as events:
            answer = plain(events.get_final_message())
    else:
        answer = plain(client.beta.messages.create(**asked))
    blocks, usage = answer["content"], answer.get("usage") or {}
    calls = [{"name": each["name"], "args": each["input"]} for each in blocks if each["type"] == "tool_use"]
    stop = answer.get("stop_reason")
    read, made = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return normal(
        text="".join(each["text"] for each in blocks if each["type"] == "text"),
        reasoning="".join(each["thinking"] for each in blocks if each["type"] == "thinking"),
        calls=calls,
        stop="tool_use" if calls and stop == "end_turn" else MESSAGES_STOPS.get(str(stop), stop),
        usage=[(usage.get("input_tokens") or 0) + read + made, usage.get("output_tokens"), read],
        sources=sources([each.get("citations") for each in blocks if each["type"] == "text"]),
        hosted=[each["type"] for each in blocks if each["type"] not in PLAIN],
        owed=[*messages_owed(blocks)],
    )


def messages_owed(blocks: Sequence[Data]) -> Iterator[str]:
    """Yield the texts that have to go back with blocks. A result goes back behind its call, which may be elsewhere."""
    begun = {each.get("id") for each in blocks}
    for each in blocks:
        if each["type"] == "thinking":
            yield from filter(None, [each.get("signature")])
        elif each["type"] == "redacted_thinking":
            yield each["data"]
        elif each["type"] not in PLAIN:
            own = each.get("tool_use_id")
            yield from filter(None, [each.get("id"), own if own in begun else None])


def gemini(url: str, model: str, kind: str) -> Data:
    """Read an answer of Google's."""
    asked: Any = {"model": model, "contents": "hello", "config": {"http_options": {"base_url": url}}}
    client = google_client()
    if kind == STREAM:
        answers = [plain(each) for each in client.models.generate_content_stream(**asked)]
    else:
        answers = [plain(client.models.generate_content(**asked))]
    candidates = [(each.get("candidates") or [{}])[0] for each in answers]
    parts = [part for each in candidates for part in ((each.get("content") or {}).get("parts") or ())]
    reasons = [each["finishReason"] for each in candidates if each.get("finishReason")]
    blocked = any((each.get("promptFeedback") or {}).get("blockReason") for each in answers)
    if reasons and reasons[-1] in GEMINI_BROKEN:
        return normal(error="in the answer")
    if not reasons and not blocked:
        return normal(error="broken")
    usage: Data = next((each["usageMetadata"] for each in reversed(answers) if each.get("usageMetadata")), {})
    calls = [
        {"name": part["functionCall"].get("name") or "", "args": part["functionCall"].get("args") or {}}
        for part in parts
        if part.get("functionCall")
    ]
    stop = "content_filter" if blocked else GEMINI_STOPS.get(reasons[-1], "content_filter")
    told = [usage[name] for name in ("candidatesTokenCount", "thoughtsTokenCount") if usage.get(name)]
    kinds = ("toolCall", "toolResponse", "executableCode", "codeExecutionResult", "functionResponse")
    return normal(
        text="".join(part.get("text") or "" for part in parts if not part.get("thought")),
        reasoning="".join(part.get("text") or "" for part in parts if part.get("thought")),
        calls=calls,
        stop="tool_use" if calls and stop == "end_turn" else stop,
        usage=[
            (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0),
            sum(told) if told else None,
            usage.get("cachedContentTokenCount") or 0,
        ],
        sources=sources([each.get("groundingMetadata") for each in candidates]),
        hosted=[kind for part in parts for kind in kinds if part.get(kind) is not None],
        files=sum(part.get("inlineData") is not None for part in parts),
        owed=[part["thoughtSignature"].translate(STANDARD) for part in parts if part.get("thoughtSignature")],
    )


READERS: Final[Mapping[str, Callable[[str, str, str], Data]]] = {
    "anthropic": messages,
    "gemini": gemini,
    "openai-chat": chat,
    "openai-responses": responses,
}


def read(url: str, protocol: str, model: str, kind: str) -> Data:
    """Read an answer; an error of the server has its status, or says that it came in the answer."""
    try:
        return READERS[protocol](url, model, kind)
    except Exception as exc:  # noqa: BLE001 - whatever a client has against a recording
        status = getattr(exc, "status_code", None) or getattr(exc, "code", None)
        if isinstance(status, int) and status != 200:
            return normal(error=status)
        if type(exc).__name__ == "APIError":
            return normal(error="in the answer")
        return {"unread": f"{type(exc).__name__}: {exc}"[:300]}


# -- the types of requests


def strict(module: str) -> None:
    """Let the types of a package refuse members that they do not have."""
    for name, loaded in [*sys.modules.items()]:
        if name.startswith(f"{module}.types"):
            for each in vars(loaded).values():
                if typing.is_typeddict(each):
                    each.__pydantic_config__ = {"extra": "forbid"}


def drained(value: object) -> None:
    """Go through all that is validated only when it is looked at."""
    if isinstance(value, Mapping):
        for each in value.values():
            drained(each)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            drained(each)


def published() -> Mapping[str, Callable[[Data], None]]:
    """Return what checks the bodies of each protocol."""
    types, adapter = import_module("google.genai.types"), import_module("pydantic").TypeAdapter
    chats = import_module("openai.types.chat.completion_create_params").CompletionCreateParamsStreaming
    answers = import_module("openai.types.responses.response_create_params").ResponseCreateParamsStreaming
    asked = import_module("anthropic.types.beta.message_create_params").MessageCreateParamsStreaming
    strict("openai")
    strict("anthropic")
    adapters = {
        "anthropic": adapter(asked),
        "openai-chat": adapter(chats),
        "openai-responses": adapter(answers),
    }
    members = {
        "contents": types.Content,
        "generationConfig": types.GenerationConfig,
        "systemInstruction": types.Content,
        "tools": types.Tool,
        "toolConfig": types.ToolConfig,
    }

    def google(body: Data) -> None:
        for name, value in body.items():
            for each in value if isinstance(value, list) else [value]:
                members[name].model_validate(each)

    def typed(protocol: str) -> Callable[[Data], None]:
        return lambda body: drained(adapters[protocol].validate_python(body))

    return {"gemini": google, **{protocol: typed(protocol) for protocol in adapters}}


def objection(check: Callable[[Data], None], body: Data) -> str | None:
    """Return what the types have against a body."""
    for message in body.get("messages", ()):
        for each in [message, *(message.get("tool_calls") or ())]:
            for name in EXTENSIONS:
                each.pop(name, None)
    try:
        check(body)
    except Exception as exc:  # noqa: BLE001 - whatever is wrong
        return f"{type(exc).__name__}: {exc}"[:1500]
    return None


def main(url: str) -> None:
    """Read what the rows name."""
    checks = published() if url == "types" else {}
    for line in sys.stdin:
        number, protocol, *rest = json.loads(line)
        found = objection(checks[protocol], rest[0]) if checks else read(f"{url}/{number}", protocol, *rest)
        sys.stdout.write(json.dumps([number, found]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
