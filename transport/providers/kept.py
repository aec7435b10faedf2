"""The opaque data of a protocol in the blocks of an answer, such as signatures of reasoning. No I/O.

A block's `metadata` has it under the protocol's name, and the model that made it under `MODEL`. Only the same model
over the same protocol gets it back: others refuse it, or cannot read it.
"""

from collections.abc import Mapping
from typing import Any, Final

from warren.messages import ReasoningBlock, TextBlock, ToolUseBlock
from warren.transport.providers import wire

MODEL: Final = "model"


def keep(protocol: str, model: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the metadata of a block that a model made; None if there is nothing to keep."""
    return {protocol: data, MODEL: model} if data else None


def kept(block: TextBlock | ReasoningBlock | ToolUseBlock, protocol: str, model: str) -> dict[str, Any]:
    """Return the data that a model gets back with a block; empty if another one made it, or there is none.

    Data without a model, as older versions stored it, counts as made by any model.
    """
    metadata = block.metadata or {}
    return wire.as_object(metadata.get(protocol)) if metadata.get(MODEL, model) == model else {}
