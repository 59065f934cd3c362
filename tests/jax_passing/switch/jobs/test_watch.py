"""The watch notices that a host, a rack or the device is gone: leases, checks, and what goes wrong in them."""

import asyncio
from unittest import mock

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs import watch
from jax_passing.switch.jobs.waits import end_waits
from support.switch.control import scenario, until
from support.switch.control_trees import LEASE_S, in_tree, job, spoken


@scenario()
async def test_a_device_that_loses_its_state_ends_running_jobs_alone(switch):
    hosts, _ = await switch.job()
    forming = await switch.join(0, job="b")
    switch.data_plane.lost = "its tables are empty"
    for host in hosts:
        failed = await host.receive()
        assert isinstance(failed, messages.Failed)
        assert failed.kind == "SwitchLostError"
        assert "its tables are empty" in failed.message
    await switch.join(1, job="b")
    assert isinstance(await forming.receive(), messages.Welcome)
    _, welcome = await switch.job()
    assert welcome.epoch == 2


@scenario()
async def test_a_device_that_loses_its_state_after_the_join_deadline(switch):
    """Ranks that run no longer wait to join. (Seed 4982 of the simulator.)"""
    hosts, _ = await switch.job(join_deadline_s=0.2)
    await asyncio.sleep(0.3)
    switch.data_plane.lost = "its tables are empty"
    for host in hosts:
        assert isinstance(await host.receive(), messages.Failed)
        assert await host.receive() is None
    assert not switch.plane.stats().get("watches_failed")


@scenario()
async def test_a_check_that_raises_ends_running_jobs_and_is_tried_again(switch):
    def check():
        raise RuntimeError("an answer without a number")

    hosts, _ = await switch.job()
    good, switch.data_plane.check = switch.data_plane.check, check
    for host in hosts:
        failed = await host.receive()
        assert isinstance(failed, messages.Failed)
        assert failed.kind == "SwitchLostError"
        assert "RuntimeError: an answer without a number" in failed.message
    switch.data_plane.check = good
    await asyncio.sleep(0.15)
    await switch.job()
    switch.data_plane.lost = "its tables are empty"
    assert isinstance(await switch.hosts[-1].receive(), messages.Failed)


def test_a_rank_that_never_leaves_holds_no_slots(monkeypatch, caplog):
    monkeypatch.setattr(watch, "LEAVE_LEASES", 0.01)
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @scenario()
    async def run(switch):
        hosts, welcome = await switch.job(3)
        hosts[0].send(messages.Leave())
        await until(lambda: not switch.data_plane.running)
        assert "slots" not in switch.plane.held()
        assert "job 'a', epoch 1: rank 0 left, ranks 1, 2 stay: its slots are free again" in caplog.text
        assert switch.plane.stats()["slots_freed_early"] == 1

        hosts[1].send(messages.Query(welcome.slot_first, 0), messages.GroupLost())  # as when its next sum stalls
        assert await hosts[1].receive() == messages.SlotState(left=(0,))
        others, other = await switch.job(job="b")
        assert other.slot_first == welcome.slot_first
        for host in hosts[1:]:
            host.send(messages.Leave())
        for host in hosts:
            assert await host.receive() == messages.Bye()
        assert len(switch.data_plane.removed) == 1
        others[0].send(messages.Heartbeat())
        assert await others[0].receive() == messages.Heartbeat()

    run()


@in_tree()
async def test_a_rank_that_never_leaves_holds_no_slots_in_a_tree(tree, root, left, right):
    hosts, _ = await job(left, right)
    hosts[3].send(messages.Leave())
    await until(lambda: all(epoch.left for switch in (root, left, right) for epoch in switch.plane.jobs.epochs()))
    for switch in (root, left, right):
        (epoch,) = switch.plane.jobs.epochs()
        epoch.left_since -= watch.LEAVE_LEASES * 30.0
    await until(lambda: not any(switch.data_plane.running for switch in (root, left, right)))
    for host in hosts[:3]:
        host.send(messages.Leave())
    for host in hosts:
        assert await host.receive() == messages.Bye()


def test_who_sends_too_much_is_named(caplog, monkeypatch):
    monkeypatch.setattr(watch, "OVERFLOWS_S", 0.05)
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @scenario()
    async def run(switch):
        _, loud = await switch.job(job="loud")
        _, quiet = await switch.job(job="quiet")
        switch.data_plane.overflowed = {0: 0, loud.job_id: 100, quiet.job_id: 0}
        await until(lambda: caplog.records)
        switch.data_plane.overflowed = {0: 7, loud.job_id: 103, quiet.job_id: 0}
        await until(lambda: len(caplog.records) == 3)
        said = sorted(record.getMessage() for record in caplog.records)
        assert said[0].startswith("job 'loud', epoch 1 sends more than this switch can take: 100 packets were dropped")
        assert "take: 3 packets" in said[1]
        assert said[2].startswith("who is in no job")
        assert switch.plane.stats()["overflows_noticed"] == 3

    run()


@scenario()
async def test_a_data_plane_that_cant_tell_who_sends_too_much_does_no_harm(switch):
    def overflows():
        raise RuntimeError("no answer")

    switch.data_plane.overflows = overflows
    await asyncio.sleep(0.15)
    await switch.job()
    assert switch.is_watched


@scenario(lease_s=1.0)
async def test_a_fault_while_one_job_is_watched_ends_no_other(switch):
    """Neither the faulty job's hosts nor others wait for anything: those hear of it, these are watched as before."""
    faulty = {"faulty", "forming"}

    def fail_for_some(jobs, epoch, now):
        if epoch.job.name in faulty:
            raise RuntimeError(f"no such thing in {epoch.job.name}")
        end_waits(jobs, epoch, now)

    hosts, _ = await switch.job(job="faulty")
    waiting = await switch.join(0, 2, job="forming")
    others, _ = await switch.job(job="other")
    await switch.has(0, job="forming")
    with mock.patch.object(watch, "end_waits", fail_for_some):
        for host in hosts:
            failed = await host.receive()
            assert failed.kind == "SwitchLostError"
            assert "RuntimeError: no such thing in faulty" in failed.message
        assert "no such thing in forming" in await waiting.refusal()
        assert switch.plane.stats()["watches_failed"] == 2
        assert switch.is_watched

        faulty.clear()
        again, _ = await switch.job(job="faulty")
        again[0].send(messages.Heartbeat())
        assert await again[0].receive() == messages.Heartbeat()
        lost = await others[0].receive()  # the lease of the two has run out meanwhile, as nobody sent anything
        assert (lost.kind, "was silent for 1 s" in lost.message) == ("HostLostError", True)


@scenario()
async def test_a_job_that_cant_even_be_ended_ends_no_other(switch):
    """Its hosts hear nothing, but nobody else's do, and the switch goes on."""

    def fail(*_):
        raise RuntimeError("no way")

    await switch.job(job="a")
    with (
        mock.patch.object(watch, "end_waits", lambda jobs, epoch, now: fail() if epoch.job.name == "a" else None),
        mock.patch.object(switch.plane.jobs, "fail", fail),
    ):
        await until(lambda: switch.plane.stats().get("watches_failed", 0) > 1)
    others, _ = await switch.job(job="b")
    others[0].send(messages.Heartbeat())
    assert await others[0].receive() == messages.Heartbeat()
    assert switch.is_watched


@in_tree(lease_s=LEASE_S)
async def test_a_silent_host_is_lost_everywhere_and_racks_are_not(tree, root, left, right):
    hosts, _ = await job(left, right)
    began = asyncio.get_running_loop().time()
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat() and asyncio.get_running_loop().time() - began < 2 * LEASE_S:
        for host in hosts:
            host.send(messages.Heartbeat())
            answer = await host.receive()
        await asyncio.sleep(0.05)
    assert answer == messages.Heartbeat()
    while answer == messages.Heartbeat():
        for host in hosts[:3]:
            host.send(messages.Heartbeat())
            answer = await host.receive()
        await asyncio.sleep(0.05)
    assert (answer.kind, answer.ranks) == ("HostLostError", (3,))
    assert "It stands still, died, or its network was cut: look at its log." in answer.message


@in_tree(racks=0, lease_s=LEASE_S)
async def test_a_silent_rack_is_lost_when_its_lease_ends(tree, root):
    first, _ = await spoken(root)
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat():
        first.send(messages.Heartbeat())
        answer = await first.receive()
        await asyncio.sleep(0.05)
    assert (answer.kind, answer.ranks) == ("HostLostError", (1,))
    assert f"The switch at far:1 (rank 1) was silent for {LEASE_S:g} s" in answer.message


@in_tree(racks=0)
async def test_the_likely_cause_doesnt_come_from_a_name(tree, root):
    first, rack = await spoken(root, "silent:1")
    rack.writer.close()
    answer = await first.receive()
    assert answer.kind == "HostLostError"
    assert answer.message.startswith("The switch at silent:1 (rank 1) closed its connection")
    assert "It was killed or crashed: look at its log." in answer.message
