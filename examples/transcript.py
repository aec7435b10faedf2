"""A conversation as Markdown: every kind of message, and every kind of block in the answers of a model."""

from collections.abc import Iterator

import trio

import warren
from warren import Config, File, HistoryPage, Message, SessionPage, SessionView, TurnResult, open_supervisor
from warren import messages as said
from warren.testing import ScriptedModel, call, say


def markdown(page: HistoryPage) -> Iterator[str]:
    """Yield the lines of a page of a conversation."""
    for entry in page.messages:
        yield from lines(entry.message)


def lines(message: Message) -> Iterator[str]:
    """Yield the lines of a message."""
    match message:
        case said.SystemMessage(content=text):
            yield f"> {text}"
        case said.UserMessage(content=text, attachments=files):
            yield f"**You:** {text}"
            yield from (f"- `{file.name}`" for file in files)
        case said.ContextMessage(content=text, source=source):
            yield f"*{source or 'the program'}: {text}*"
        case said.AssistantMessage(blocks=blocks, stop_reason=reason):
            yield from map(line, blocks)
            yield from cut_short(reason)
        case said.ToolResultsMessage(results=results):
            yield from map(result, results)


def line(block: said.Block) -> str:
    """Return the line of a block."""
    match block:
        case said.TextBlock(text=text):
            return f"**Model:** {text}"
        case said.ReasoningBlock(text=text):
            return f"<!-- {text or 'hidden reasoning'} -->"
        case said.ToolUseBlock(name=name, args=args):
            return f"- calls `{name}` with {dict(args)}"
        case said.HostedToolBlock(kind=kind):
            return f"- its provider runs `{kind}`"
        case said.FileBlock(file=file):
            return f"- makes `{file.name}`"
        case said.UnknownBlock(type=kind):
            return f"- {kind}, which this version does not know"


def cut_short(reason: said.StopReason) -> Iterator[str]:
    """Yield a line if an answer ended before its time."""
    if reason in ("max_tokens", "content_filter", "cancelled"):
        yield f"*(ends here: {reason})*"


def result(found: said.ToolResult) -> str:
    """Return the line of a tool's result."""
    return f"- {'fails' if found.is_error else 'gets'}: {found.content}"


@warren.tool
async def count(what: str) -> int:
    """Count what grows in the garden."""
    return len(what)


async def main() -> None:
    """Have a conversation, and print it and all others."""
    model = ScriptedModel([[say("Let me see."), call("count", what="carrots")], say("Seven.")])
    config = Config(model="gardener", system_prompt="Be brief.")
    async with open_supervisor(config, tools=[count], providers={"gardener": model}) as service:
        beds = File(b"carrots carrots", media_type="text/plain", name="beds.txt")
        answer: TurnResult = await service.create_session("How many carrots?", attachments=[beds])
        print(f"# {answer.text}")
        page: SessionPage = await service.list()
        for summary in page.sessions:
            view: SessionView = await service.read(summary.session_id)
            print(f"{view.state.message_count} messages, {view.billing.total_tokens} tokens")
            for each in markdown(await service.history(summary.session_id)):
                print(each)


if __name__ == "__main__":
    trio.run(main)
