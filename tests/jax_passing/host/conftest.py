import pytest
from support.jax.in_process import SwitchThread

from jax_passing.host import session as sessions


@pytest.fixture
def running():
    one = SwitchThread()
    yield one
    if (current := sessions.current()) is not None:
        current._shut_down("the test is over")
    one.stop()
