"""Elastic sessions on a virtual clock: whatever is lost, those that are left agree, and go on in time."""

from collections import Counter
from functools import partial

import pytest

from simulation.silence import silence
from simulation.storms import attempt, put_out
from simulation.training import LIMIT_S, Training


def ended(training, end):
    return [host for host in training.hosts if host.end == end]


def under_way(training):
    """Until all have taken a step."""
    full = training.wanted
    assert training.run_until(lambda: sum(bool(host.step) for host in training.hosts) == full, LIMIT_S)


def have_met_again(hosts, meeting):
    return all(host.phase == "running" and host.met.meeting != meeting for host in hosts)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_without_faults_all_steps_are_taken_by_all(hosts):
    for seed in range(5):
        training = Training(seed, hosts=hosts, standby=seed % 2 == 0)
        training.run()
        assert len(ended(training, "done")) == hosts
        assert len({host.value for host in training.hosts}) == 1
        assert training.failures == []


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_stragglers_of_30_s_are_waited_for(hosts):
    for seed in range(5):
        training = Training(seed, hosts=hosts, straggling=0.2)
        training.run()
        assert len(ended(training, "done")) == hosts
        assert training.failures == []


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_a_host_that_the_operator_puts_out_ends_and_the_others_go_on_at_once(hosts):
    for seed in range(5):
        training = Training(seed, hosts=hosts, shards=1 + seed % 2)
        under_way(training)
        out, put_out_at, met = training.hosts[seed % hosts], training.world.now(), training.hosts[0].met.meeting
        put_out(training, out)
        others = [host for host in training.hosts if host is not out]
        assert training.run_until(partial(have_met_again, others, met), 30.0)
        assert training.world.now() - put_out_at < 5.0
        training.run()
        assert "The operator of the switch at the switch put rank" in out.end
        assert len(ended(training, "done")) == hosts - 1


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("standby", [False, True])
def test_a_host_that_is_killed_is_left_behind_at_once(hosts, standby):
    for seed in range(5):
        training = Training(seed, hosts=hosts, standby=standby)
        under_way(training)
        killed_at = training.world.now()
        training.hosts[seed % hosts].die()
        others, met = training.alive(), training.hosts[0].met.meeting
        assert training.run_until(partial(have_met_again, others, met), 30.0)
        assert training.world.now() - killed_at < 5.0  # a message takes up to 0.2 s, and so do parts of a step
        assert {host.met.world_size for host in others} == {hosts - 1}
        training.run()
        assert len(ended(training, "done")) == hosts - 1
        assert len({host.value for host in ended(training, "done")}) == 1


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_a_newcomer_takes_the_place_of_a_host_that_is_lost(hosts):
    for seed in range(5):
        training = Training(seed, hosts=hosts)
        under_way(training)
        training.hosts[seed % hosts].die()
        training.world.call_later(training.world.random.uniform(0, 2.0), partial(training.start, seed % hosts))
        training.run()
        assert len(ended(training, "done")) == hosts
        assert len({host.value for host in ended(training, "done")}) == 1
        assert {kind for _, kind in training.failures} <= {"HostLostError", "HostJoinedError"}


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("what", ["restarted", "standby", "one can't reach it"])
def test_the_switch_is_lost(hosts, what):
    for seed in range(5):
        training = Training(seed, hosts=hosts, least=hosts, standby=what != "restarted")
        under_way(training)
        first = training.switches[0]
        if what == "one can't reach it":
            training.cut(training.hosts[seed % hosts], 0, LIMIT_S)
        else:
            first.go_down()
        if what == "restarted":
            training.world.call_later(training.world.random.uniform(0, 5.0), first.begin)
        training.run()
        assert len(ended(training, "done")) == hosts, [host.end for host in training.hosts]
        assert len({host.value for host in training.hosts}) == 1


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (10, 50))])
def test_others_go_on_in_time_when_a_switch_falls_silent(first):
    for seed in range(first, first + max(first, 10)):
        silence(seed).run()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (100, 200, 300))])
def test_each_step_is_all_or_none_whatever_happens(first):
    """More of these seeds: `tests/simulate.py --elastic --seeds 10000`."""
    ends = Counter()
    for seed in range(first, first + 40):
        wrong, counts = attempt(seed)
        assert not wrong, f"seed {seed}: {wrong}"
        ends.update(counts)
    assert all(ends[f"end: {end}"] for end in ("done", "died", "refused"))  # else the seeds show little
