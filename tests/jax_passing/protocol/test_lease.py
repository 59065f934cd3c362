"""Either end of a connection notices that the other is silent, on a clock that the test moves."""

import pytest

from jax_passing.protocol.lease import HEARTBEATS_PER_LEASE, Lease
from support.moved_outside import MovedOutside

LEASE_S = 30.0


@pytest.fixture
def outside():
    return MovedOutside()


def lease(outside, said=None):
    lost = []
    return Lease(outside, LEASE_S, lambda: lost.append(outside.now_s), said), lost


def test_who_is_silent_for_a_lease_is_lost_once(outside):
    one, lost = lease(outside)
    outside.pass_by(20.0)
    one.heard()
    outside.pass_by(LEASE_S - 0.5)
    assert not lost
    outside.pass_by(4.0)
    outside.pass_by(100.0)
    assert len(lost) == 1
    assert not outside.timers


def test_what_passes_while_this_process_stands_still_doesnt_count(outside):
    one, lost = lease(outside)
    for _ in range(3):  # it is suspended again and again, and so is the other end
        outside.pass_by(5.0)
        outside.pass_by(3600.0, step_s=3600.0)
        outside.pass_by(0.1)
        one.heard()
    assert not lost
    outside.pass_by(3600.0, step_s=3600.0)
    outside.pass_by(LEASE_S + 3.0)  # the other end never goes on
    assert len(lost) == 1


def test_this_end_says_that_it_lives_and_does_so_at_once_when_it_goes_on(outside):
    said = []
    one, _ = lease(outside, lambda: said.append(outside.now_s))
    outside.pass_by(LEASE_S - 1.0)
    assert len(said) == HEARTBEATS_PER_LEASE - 1
    one.heard()
    outside.pass_by(3600.0, step_s=3600.0)
    assert said[-1] == outside.now_s
    one.stop()
    outside.pass_by(100.0)
    assert len(said) == HEARTBEATS_PER_LEASE
