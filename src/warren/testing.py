"""Tests of programs that use Warren: a model that follows a script, and what reads a conversation.

The fixtures `warren_service` and `scripted` come with the installation: pytest finds them by itself.
"""

from warren.transport.providers.scripted import Script as Script
from warren.transport.providers.scripted import ScriptedCall as ScriptedCall
from warren.transport.providers.scripted import ScriptedError as ScriptedError
from warren.transport.providers.scripted import ScriptedModel as ScriptedModel
from warren.transport.providers.scripted import ScriptedStep as ScriptedStep
from warren.transport.providers.scripted import call as call
from warren.transport.providers.scripted import fail as fail
from warren.transport.providers.scripted import say as say
from warren.transport.testing.recorder import RecordedCall as RecordedCall
from warren.transport.testing.recorder import Recorder as Recorder
from warren.transport.testing.service import ScriptedFixture as ScriptedFixture
from warren.transport.testing.snapshot import snapshot as snapshot
