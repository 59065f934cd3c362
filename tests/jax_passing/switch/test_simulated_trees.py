"""Whole trees of control planes on a virtual clock, with hosts and faults from a seed."""

import pytest
from simulated_control import LEASE_S, SimulatedTree

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.member_conversation import FIRST_MESSAGE_S


def of_kind(host, kind):
    return [message for message in host.heard_all if isinstance(message, kind)]


def by_job(tree):
    jobs = {}
    for host in tree.hosts:
        jobs.setdefault(host.job, []).append(host)
    return jobs.values()


def check(tree):
    """What holds whatever has happened."""
    assert not tree.run(), "hosts wait for ever"
    assert tree.world.has_been_silent or not any(host.end == "heard nothing" for host in tree.hosts)
    for hosts in by_job(tree):
        if any(of_kind(host, messages.Bye) for host in hosts):
            assert all(host.has_left for host in hosts)
        # There is one epoch only, as no host comes back: all see the same plan.
        plans = {(one.slot_count, one.lanes_per_chunk) for host in hosts for one in of_kind(host, messages.Welcome)}
        assert len(plans) <= 1
        places = [(host.switch, one.epoch, one.worker) for host in hosts for one in of_kind(host, messages.Welcome)]
        assert len(set(places)) == len(places)
        for host in hosts:
            assert len(of_kind(host, messages.Welcome)) <= 1
    tree.world.run(lambda: False, 3 * (LEASE_S + FIRST_MESSAGE_S))
    for switch in tree.switches:
        assert not switch.plane._jobs.epochs()
        assert not switch.data_plane.running
        assert not switch.plane._jobs.starts._partition._count_of
        assert not switch.plane._questions.pending


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_every_host_hears_how_it_ended_and_nothing_is_left(first):
    ends = set()
    for seed in range(first, first + 100):
        tree = SimulatedTree(seed)
        try:
            check(tree)
        except BaseException:
            print(f"seed {seed}")
            raise
        ends |= {host.end for host in tree.hosts}
    assert ends >= {"Bye", "Failed", "Refused", "died"}  # else the seeds show little


def test_without_faults_every_job_runs_to_its_end():
    for seed in range(100):
        tree = SimulatedTree(seed, faults=0.0)
        check(tree)
        assert {host.end for host in tree.hosts} == {"Bye"}, seed


def test_a_seed_replays():
    for seed in range(10):
        traces = []
        for _ in range(2):
            tree = SimulatedTree(seed)
            tree.run()
            traces.append(tree.world.trace)
        assert traces[0] == traces[1]
        assert traces[0]
