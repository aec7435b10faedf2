"""The settings of commands that no class of the runtime has: their options and the file have their sentences here."""

from typing import Any

import attrs

from warren.base.database_url import is_place
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation.categories import Category


def no_nul(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse texts that cannot be paths; None passes."""
    if value is not None and any("\0" in each for each in ([value] if isinstance(value, str) else value)):
        raise FieldValueError(attribute.name, "must not hold NUL")


@frozen(kw_only=True)
class OfCommands:
    """The settings that the classes of the runtime do not have, or not as a file spells them.

    Attributes:
        store: folder of the store, or the address of a PostgreSQL database; .rkat by default.
        ephemeral: keep nothing: no store at all.
        base_url: address of the server that --provider names: a vendor's, one of the file's, or any name for a server
            with OpenAI's chat completions.
        record: record the answers of the model as a script for --model scripted:FILE.
        stream: write the answer as it comes, or whole at its end. By default it streams on a terminal.
        memory: remember what is summarised away, so that the model can search it; off by default.
        enabled: false turns compaction off.
        compactor: a strategy of your own: an object of a Python module, or a function that makes one.
        token_file: the file of the tokens that clients may have: one word, or the list that `warren token` keeps.
        root: the model may read and write the files in DIR.
        builtins: it may read the web and the clock too; with --no-builtins not even files, unless a client enables
            them.
        shell: it may run commands, which start in --root DIR (needed) and can do whatever you can; off by default.
        skills: it may load the skills in DIR; repeatable.
        mcp_config: it may use the MCP servers that a JSON file names under mcpServers.
        hooks_files: it is watched by the hooks in FILE, in the form of Claude Code's settings.json; repeatable.
        enable: kinds of tools that are offered; those of `disable` are not.
        ask: kinds whose calls wait for approval; calls of the kinds in `deny` are refused.
        server: use the sessions of the gateway at URL, as ws://127.0.0.1:8420 or unix:PATH, and none of a store.
        tenant: work in that tenant; at a server that is the tenant of the token, and another one needs tenant:admin.
    """

    store: str | None = attrs.field(default=None, validator=[no_nul, is_place])
    ephemeral: bool = False
    base_url: str | None = None
    record: str | None = None
    stream: bool | None = None
    memory: bool = False
    enabled: bool = True
    compactor: str | None = None
    token_file: str | None = attrs.field(default=None, validator=no_nul)
    root: str | None = attrs.field(default=None, validator=no_nul)
    builtins: bool | None = None
    shell: bool = False
    skills: tuple[str, ...] | None = attrs.field(default=None, validator=no_nul)
    mcp_config: str | None = attrs.field(default=None, validator=no_nul)
    hooks_files: tuple[str, ...] = attrs.field(default=(), validator=no_nul)
    enable: tuple[Category, ...] = ()
    disable: tuple[Category, ...] = ()
    ask: tuple[Category, ...] = ()
    deny: tuple[Category, ...] = ()
    server: str | None = None
    tenant: str | None = None
