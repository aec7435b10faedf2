"""Pictures that the model makes, on every surface."""

from base64 import b64encode
from hashlib import sha256
from typing import Final

from tests.parity.scenarios.turns import PLAIN
from tests.parity.stage import Stage, scenario
from tests.parity.surface import TURN
from tests.parity.world import Setting
from warren.conversation.attachments import Attachment
from warren.conversation.messages import AssistantMessage, FileBlock

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(100_000)
FILE: Final = Attachment("image/png", sha256(PNG).hexdigest(), len(PNG), "sea.png")
STEPS: Final = ({"text": "The sea.", "files": [{"data": b64encode(PNG).decode(), "name": "sea.png"}]},)


@scenario(TURN, needs=["store"], setting=Setting(STEPS))
async def a_picture(stage: Stage) -> None:
    """A turn ends with the picture that the model has made; it is in the events, the history and the store."""
    turn = await stage.one.first_turn("draw the sea")
    stage.well(turn, text="The sea.", attachments=(FILE,))
    assert turn.kinds == stage.surface.kinds((*PLAIN[:4], "files_complete", *PLAIN[4:]))
    if stage.surface.per_process:
        return
    session_id = turn.data["session_id"]
    service = stage.world.service
    answer = (await service.history(session_id)).messages[-1].message
    assert isinstance(answer, AssistantMessage)
    assert [block.file for block in answer.blocks if isinstance(block, FileBlock)] == [FILE]
    assert (await service.attachment(session_id, str(FILE.sha256))).data == PNG
