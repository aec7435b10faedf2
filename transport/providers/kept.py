"""The opaque data of a protocol in the blocks of an answer, such as signatures of reasoning. No I/O.

A block's `metadata` has it under the protocol's name, and its maker under `PROVIDER` and `MODEL`. Only the same
model of the same provider gets it back over the same protocol: others refuse it, or cannot read it.
"""

from collections.abc import Mapping
from typing import Any, Final

from warren.messages import ReasoningBlock, TextBlock, ToolUseBlock
from warren.transport.providers import wire

PROVIDER: Final = "provider"
MODEL: Final = "model"


def keep(protocol: str, provider: str, model: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the metadata of a block that a model of a provider made; None if there is nothing to keep."""
    return {protocol: data, PROVIDER: provider, MODEL: model} if data else None


def kept(block: TextBlock | ReasoningBlock | ToolUseBlock, protocol: str, provider: str, model: str) -> dict[str, Any]:
    """Return the data that a model gets back with a block; empty if another one made it, or there is none.

    Data without a provider or a model, as older versions stored it, counts as made by any.
    """
    metadata = block.metadata or {}
    own = metadata.get(PROVIDER, provider) == provider and metadata.get(MODEL, model) == model
    return wire.as_object(metadata.get(protocol)) if own else {}
