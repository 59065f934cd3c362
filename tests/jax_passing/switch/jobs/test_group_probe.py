"""When a group counts as heard: the probe without a network, with times that the tests choose."""

from jax_passing.switch.data_planes.data_plane import MulticastGroup
from jax_passing.switch.jobs.group_probe import READY_S, ROUND_S, ROUNDS, GroupProbe, ProbeStep

GROUP = MulticastGroup("239.192.0.1", 7170, "10.0.0.1")


def probe_of(world_size=3, ready=True):
    probe = GroupProbe(GROUP, nonce=1, ranks=range(world_size), now=0.0)
    for rank in range(world_size if ready else 0):
        probe.ready(rank, "")
    return probe


def test_all_hear_the_first_burst():
    probe = probe_of(ready=False)
    for rank in range(3):
        assert probe.step(0.001) is ProbeStep.WAIT
        probe.ready(rank, "")
    assert probe.step(0.002) is ProbeStep.SEND
    for rank in range(3):
        assert probe.step(0.003) is ProbeStep.WAIT
        probe.heard(rank)
        probe.heard(rank)
    assert probe.step(0.004) is ProbeStep.HEARD


def test_bursts_are_repeated_until_all_have_heard():
    probe = probe_of()
    assert probe.step(0.0) is ProbeStep.SEND
    probe.heard(0)
    probe.heard(2)
    assert probe.step(ROUND_S / 2) is ProbeStep.WAIT
    assert probe.step(ROUND_S) is ProbeStep.SEND
    assert probe.step(2.9 * ROUND_S) is ProbeStep.WAIT  # the next ones come ever more seldom
    assert probe.step(3 * ROUND_S) is ProbeStep.SEND
    probe.heard(1)
    assert probe.step(3 * ROUND_S) is ProbeStep.HEARD


def test_who_hears_nothing_is_named():
    probe = probe_of(4)
    now = 0.0
    probe.heard(2)
    for number in range(ROUNDS):
        assert probe.step(now) is ProbeStep.SEND
        now += ROUND_S * 2**number
    assert probe.step(now) is ProbeStep.NOT_HEARD
    assert probe.reason == "the group 239.192.0.1 doesn't reach ranks 0, 1, 3"


def test_who_never_answers_is_named():
    probe = probe_of(ready=False)
    probe.ready(0, "")
    probe.ready(2, "")
    assert probe.step(READY_S - 0.001) is ProbeStep.WAIT
    assert probe.step(READY_S) is ProbeStep.NOT_HEARD
    assert probe.reason == f"rank 1 didn't answer for {READY_S:g} s"


def test_who_cant_join_ends_it_at_once():
    probe = probe_of(ready=False)
    probe.ready(1, "No such device")
    assert probe.step(0.0) is ProbeStep.NOT_HEARD
    assert probe.reason == "rank 1 can't join the group 239.192.0.1: No such device"


def test_bursts_wait_for_who_joins_last():
    probe = probe_of(2, ready=False)
    probe.ready(0, "")
    assert probe.step(READY_S / 2) is ProbeStep.WAIT
    probe.ready(1, "")
    assert probe.step(READY_S / 2) is ProbeStep.SEND
    assert probe.step(READY_S / 2) is ProbeStep.WAIT
    assert probe.step(READY_S / 2 + ROUND_S) is ProbeStep.SEND


def test_a_data_plane_that_cant_send_ends_it():
    probe = probe_of()
    probe.fail("no route")
    assert probe.step(0.0) is ProbeStep.NOT_HEARD
    assert probe.reason == "no route"
