"""The opaque data of a protocol in the blocks of an answer, such as signatures of reasoning. No I/O.

A block's `metadata` has it under the protocol's name, and its maker under `PROVIDER` and `MODEL`. Only the same
model of the same provider gets it back over the same protocol: others refuse it, or cannot read it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from warren.conversation.messages import FileBlock, HostedToolBlock, ReasoningBlock, TextBlock, ToolUseBlock
from warren.transport.providers import wire

Owned = TextBlock | ReasoningBlock | ToolUseBlock | HostedToolBlock | FileBlock
PROVIDER: Final = "provider"
MODEL: Final = "model"
CITATIONS: Final = "citations"
"""The sources of a text, in the form of its provider."""


def keep(
    protocol: str, provider: str, model: str, data: Mapping[str, Any], citations: Sequence[Mapping[str, Any]] = ()
) -> Mapping[str, Any] | None:
    """Return the metadata of a block that a model of a provider made; None if there is nothing to keep."""
    if not data and not citations:
        return None
    own = {protocol: data} if data else {}
    return {**own, PROVIDER: provider, MODEL: model} | ({CITATIONS: citations} if citations else {})


def with_maker(call: ToolUseBlock, provider: str, model: str) -> ToolUseBlock:
    """Return a call that says who made it if its id is one that other servers may refuse.

    Such ids go back to their maker as they came: some have a signature within them, or the place of the call.
    """
    if call.metadata or wire.call_id(call.id) == call.id:
        return call
    return attrs.evolve(call, metadata={PROVIDER: provider, MODEL: model})


def kept_by(block: Owned, provider: str, model: str) -> bool:
    """Return whether a model of a provider made the data of a block.

    Data without a provider or a model, as older versions stored it, counts as made by any.
    """
    metadata = block.metadata or {}
    return bool(metadata.get(PROVIDER, provider) == provider and metadata.get(MODEL, model) == model)


def kept(block: Owned, protocol: str, provider: str, model: str) -> dict[str, Any]:
    """Return the data that a model gets back with a block; empty if another one made it, or there is none."""
    return wire.as_object((block.metadata or {}).get(protocol)) if kept_by(block, provider, model) else {}
