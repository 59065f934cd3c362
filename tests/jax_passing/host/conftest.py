import sys

import pytest

from support.switch.in_process import SwitchThread


@pytest.fixture
def running():
    one = SwitchThread()
    yield one
    # Only what a test has imported can have opened a session: many tests need none, nor JAX.
    sessions = sys.modules.get("jax_passing.host.session")
    if sessions is not None and (current := sessions.current()) is not None:
        current._shut_down("the test is over")
    one.stop()
