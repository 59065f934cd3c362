"""Elastic sessions on a virtual clock: whatever is lost, those that are left agree, and go on in time."""

from functools import partial

import pytest
from simulated_training import DEADLINE_S, STEPS, STRAGGLES_MAX_S, Training

LIMIT_S = 1200.0


def run(training):
    assert training.run(LIMIT_S), [(host.number, host.phase, host.step, host.meeting) for host in training.alive()]
    training.run_until(lambda: False, 2.5 * DEADLINE_S)  # one that was started too late is alone
    for switch in training.switches:
        if switch.process is not None:
            assert not switch.process.plane._meetings._meetings, "a meeting is left"
            assert not switch.process.plane._jobs.epochs(), "an epoch is left"


def ended(training, end):
    return [host for host in training.hosts if host.end == end]


def under_way(training):
    """Until all have taken a step."""
    full = training.wanted
    assert training.run_until(lambda: sum(bool(host.step) for host in training.hosts) == full, LIMIT_S)


def have_met_again(hosts, meeting):
    return all(host.phase == "running" and host.meeting != meeting for host in hosts)


def between(training, first, last):
    return training.world.random.uniform(first, last)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_without_faults_all_steps_are_taken_by_all(hosts):
    for seed in range(20):
        training = Training(seed, hosts=hosts, standby=seed % 2 == 0)
        run(training)
        assert len(ended(training, "done")) == hosts
        assert len({host.value for host in training.hosts}) == 1
        assert training.failures == []


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_stragglers_of_30_s_are_waited_for(hosts):
    for seed in range(5):
        training = Training(seed, hosts=hosts, straggling=0.2)
        run(training)
        assert len(ended(training, "done")) == hosts
        assert training.failures == []


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("standby", [False, True])
def test_a_host_that_is_killed_is_left_behind_at_once(hosts, standby):
    for seed in range(20):
        training = Training(seed, hosts=hosts, standby=standby)
        under_way(training)
        killed_at = training.world.now()
        training.hosts[seed % hosts].die()
        others, met = training.alive(), training.hosts[0].meeting
        assert training.run_until(partial(have_met_again, others, met), 30.0)
        assert training.world.now() - killed_at < 5.0  # a message takes up to 0.2 s, and so do parts of a step
        assert {host.world_size for host in others} == {hosts - 1}
        run(training)
        assert len(ended(training, "done")) == hosts - 1
        assert len({host.value for host in ended(training, "done")}) == 1


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_a_newcomer_takes_the_place_of_a_host_that_is_lost(hosts):
    for seed in range(20):
        training = Training(seed, hosts=hosts)
        under_way(training)
        training.hosts[seed % hosts].die()
        training.world.call_later(between(training, 0, 2.0), partial(training.start, seed % hosts))
        run(training)
        assert len(ended(training, "done")) == hosts
        assert len({host.value for host in ended(training, "done")}) == 1
        assert {kind for _, kind in training.failures} <= {"HostLostError", "HostJoinedError"}


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("what", ["restarted", "standby", "one can't reach it"])
def test_the_switch_is_lost(hosts, what):
    for seed in range(20):
        training = Training(seed, hosts=hosts, least=hosts, standby=what != "restarted")
        under_way(training)
        first = training.switches[0]
        if what == "one can't reach it":
            training.cut(training.hosts[seed % hosts], 0, LIMIT_S)
        else:
            first.go_down()
        if what == "restarted":
            training.world.call_later(between(training, 0, 5.0), first.begin)
        run(training)
        assert len(ended(training, "done")) == hosts, [host.end for host in training.hosts]
        assert len({host.value for host in training.hosts}) == 1


def storm(seed):
    """Anything at any time. Hosts that are lost are started again, some of them."""
    training = Training(seed, hosts=2 + seed % 3, least=1 + seed % 2, standby=seed % 4 == 0, straggling=0.01)
    world = training.world
    for _ in range(world.random.randint(1, 5)):
        world.call_later(between(training, 0, 20.0), partial(strike, training))
    return training


def strike(training):
    random, alive = training.world.random, training.alive()
    if not alive:
        return
    host, what = random.choice(alive), random.random()
    if what < 0.5:
        host.die()
        if random.random() < 0.8:
            training.world.call_later(random.uniform(0, 5.0), partial(training.start, host.rank))
    elif what < 0.7:
        host.stop(random.uniform(0.01, STRAGGLES_MAX_S))
    elif what < 0.85:
        switch = random.choice(training.switches)
        switch.go_down()
        training.world.call_later(random.uniform(0, 5.0), switch.begin)
    else:
        training.cut(host, random.randrange(len(training.switches)), random.uniform(0.1, 10.0))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_each_step_is_all_or_none_whatever_happens(first):
    """The hosts themselves assert that no more than one step is lost, and that those of one epoch are alike."""
    ends = set()
    for seed in range(first, first + 100):
        training = storm(seed)
        try:
            run(training)
        except BaseException:
            print(f"seed {seed}")
            raise
        steps = {host.step for host in ended(training, "done")}
        assert steps <= {STEPS}
        ends |= {(host.end or "").partition(":")[0] for host in training.hosts}
    assert ends == {"done", "died", "refused"}  # else the seeds show little
