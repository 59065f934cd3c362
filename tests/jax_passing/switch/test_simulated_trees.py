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


def ranks_in(tree, job):
    """Of the hosts whose contributions a switch's job is made of, through the switches below it."""
    ranks = []
    for worker, (host, port) in enumerate(job.addresses):
        own = [one for one in tree.hosts if (f"10.1.0.{one.number}", 1000 + one.number) == (host, port)]
        ranks += [one.rank for one in own]
        for switch in tree.switches:
            if switch.address[0] == host:
                below = [one for plane in switch.data_planes for one in plane.taken if one.parent is not None]
                links = [(one, (one.parent.job, one.parent.epoch, one.parent.worker)) for one in below]
                for one, link in links:
                    if link == (job.job, job.epoch, worker):
                        ranks += ranks_in(tree, one)
    return ranks


def check(tree):
    """What holds whatever has happened."""
    assert not tree.run(), "hosts wait for ever"
    assert tree.world.has_been_silent or not any(host.end == "heard nothing" for host in tree.hosts)
    for hosts in by_job(tree):
        if any(of_kind(host, messages.Bye) for host in hosts):
            assert {host.rank for host in hosts if host.has_left} == set(range(hosts[0].world_size))
        # There is one epoch only, as no host comes back: all see the same plan.
        plans = {(one.slot_count, one.lanes_per_chunk) for host in hosts for one in of_kind(host, messages.Welcome)}
        assert len(plans) <= 1
        places = [(host.switch, one.epoch, one.worker) for host in hosts for one in of_kind(host, messages.Welcome)]
        assert len(set(places)) == len(places)
        for host in hosts:
            assert len(of_kind(host, messages.Welcome)) <= 1
    for switch in tree.switches:
        if len(switch.data_planes) == 1:  # one that began anew uses the same numbers again
            for job in switch.data_plane.taken:
                ranks = ranks_in(tree, job)
                assert len(set(ranks)) == len(ranks), f"a rank is added twice: {ranks}"
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
        for hosts in by_job(tree):  # a stray is refused, or the host whose place it took
            ended = sorted(host.rank for host in hosts if host.end == "Bye")
            assert ended == list(range(hosts[0].world_size)), seed
            assert {host.end for host in hosts} <= {"Bye", "Refused"}, seed


def test_a_seed_replays():
    for seed in range(10):
        traces = []
        for _ in range(2):
            tree = SimulatedTree(seed)
            tree.run()
            traces.append(tree.world.trace)
        assert traces[0] == traces[1]
        assert traces[0]
