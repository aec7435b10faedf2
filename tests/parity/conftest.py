"""The asserts of the helpers of this suite say what they compared."""

import pytest

pytest.register_assert_rewrite("tests.parity.outcome", "tests.parity.stage", "tests.parity.scenarios")
