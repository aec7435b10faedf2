"""The opaque data of a protocol in the blocks of an answer, such as signatures of reasoning. No I/O.

A block's `metadata` has it under the protocol's name, and its maker under `PROVIDER` and `MODEL`. Only the same
model of the same provider gets it back over the same protocol: others refuse it, or cannot read it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from warren.base.values import frozen
from warren.conversation.messages import FileBlock, HostedToolBlock, ReasoningBlock, TextBlock, ToolUseBlock
from warren.transport.providers import wire

Owned = TextBlock | ReasoningBlock | ToolUseBlock | HostedToolBlock | FileBlock
PROVIDER: Final = "provider"
MODEL: Final = "model"
CITATIONS: Final = "citations"
"""The sources of a text, in the form of its provider."""


@frozen
class Maker:
    """A model of a provider over a protocol, which alone gets back the opaque data of the blocks that it has made.

    Attributes:
        protocol: the name under which blocks have the data.
        provider: the name of the provider.
        model: the name of the model.
    """

    protocol: str
    provider: str
    model: str

    def keep(self, data: Mapping[str, Any], citations: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any] | None:
        """Return the metadata of a new block; None if there is nothing to keep."""
        if not data and not citations:
            return None
        own = {self.protocol: data} if data else {}
        return {**own, PROVIDER: self.provider, MODEL: self.model} | ({CITATIONS: citations} if citations else {})

    def signed(self, call: ToolUseBlock) -> ToolUseBlock:
        """Return a new call that says who made it if its id is one that other servers may refuse.

        Such ids go back to their maker as they came: some have a signature within them, or the place of the call.
        """
        if call.metadata or wire.call_id(call.id) == call.id:
            return call
        return attrs.evolve(call, metadata={PROVIDER: self.provider, MODEL: self.model})

    def made(self, block: Owned) -> bool:
        """Return whether the model has made the data of a block.

        Data without a provider or a model, as older versions stored it, counts as made by any.
        """
        metadata = block.metadata or {}
        return bool(
            metadata.get(PROVIDER, self.provider) == self.provider and metadata.get(MODEL, self.model) == self.model
        )

    def kept(self, block: Owned) -> dict[str, Any]:
        """Return the data that the model gets back with a block; empty if another one made it, or there is none."""
        return wire.as_object((block.metadata or {}).get(self.protocol)) if self.made(block) else {}
