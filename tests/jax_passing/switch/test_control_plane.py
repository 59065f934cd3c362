"""The control plane over real loopback sockets, in front of a data plane that records what it is asked."""

import asyncio
import contextlib

import msgspec
import pytest
from control import RecordingDataPlane, Switch, scenario, until
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_network import SimulatedWorld

from jax_passing.protocol import control_messages as messages
from jax_passing.switch import member_conversation
from jax_passing.switch.admission import Abilities, RefusalError, rank_of_host
from jax_passing.switch.data_plane import DataPlaneError, Group
from jax_passing.switch.epochs import Member
from jax_passing.switch.group_probe import ROUNDS
from jax_passing.switch.jobs import JobTable
from jax_passing.switch.slot_partition import SlotPartition

# Joining.


@scenario()
async def test_a_job_starts_when_all_ranks_are_here(switch):
    first = await switch.join(1, 3)
    second = await switch.join(2, 3)
    await switch.has(1, 2)
    assert not switch.data_plane.running
    third = await switch.join(0, 3)
    for worker, host in enumerate((third, first, second)):
        assert await host.receive() == messages.Welcome(1, 1, 0, 256, worker, 360, 30.0)
    assert [port for _, port in switch.data_plane.running[1].addresses] == [1000, 1001, 1002]
    assert {ip for ip, _ in switch.data_plane.running[1].addresses} == {"127.0.0.1"}


@scenario(link_gbit=40.0)
async def test_all_hosts_hear_of_the_slowest_link(switch):
    hosts = [await switch.join(rank, 3, link_gbit=rate) for rank, rate in enumerate([10.0, None, 2.5])]
    for host in hosts:
        welcome = await host.receive()
        assert (welcome.link_gbit, welcome.switch_link_gbit) == (2.5, 40.0)


@scenario()
async def test_hosts_that_arent_alike_hear_of_it_all_at_once(switch):
    """The one that came last is right here: who says so?"""
    facts = [{"jaxlib": "0.10.0", "strategy": "flat"}, {"jaxlib": "0.10.2", "strategy": "flat"}]
    waiting = [await switch.join(rank, 4, alike=facts[rank > 0]) for rank in (3, 0, 1)]
    await switch.has(0, 1, 3)
    for host in [*waiting, await switch.join(2, 4, alike=facts[1])]:
        refusal = await host.refusal()
        assert "Ranks 1, 2, 3 of job 'a' have jaxlib 0.10.2, rank 0 has 0.10.0. All hosts" in refusal
        assert "strategy" not in refusal
    assert isinstance(await (await switch.join(0, 1)).receive(), messages.Welcome)  # nothing is left of them


@scenario()
async def test_hosts_that_arent_alike_hear_of_it_too_if_others_dont_come(switch):
    hosts = [await switch.join(rank, 3, alike={"axis_name": "d" * rank}, join_deadline_s=2.0) for rank in (0, 1)]
    assert "Besides: Rank 1 of job 'a' has axis_name d, rank 0 has none." in await hosts[0].refusal()


@scenario()
async def test_a_stranger_in_a_place_that_is_taken_ends_nothing(switch):
    first = await switch.join(0, alike={"jax": "1"})
    await switch.has(0)
    assert "was taken" in await (await switch.join(0, alike={"jax": "2"})).refusal()
    second = await switch.join(1, alike={"jax": "1"})
    assert isinstance(await first.receive(), messages.Welcome)
    assert isinstance(await second.receive(), messages.Welcome)
    assert "is running" in await (await switch.join(1, alike={"jax": "2"})).refusal()


def join_of_version(version, switch, rank, **changes):
    """As that version writes it: it may have fields of its own."""
    join = {
        "type": "join",
        "protocol_version": version,
        "job": "a",
        "rank": rank,
        "world_size": 2,
        "switches": [switch.instance],
        "udp_port": 7,
        "instance": f"foreign {rank}",
        "join_deadline_s": 20.0,
        **changes,
    }
    return msgspec.json.encode(join) + b"\n"


@pytest.mark.parametrize("foreign_first", [False, True])
@pytest.mark.parametrize(
    ("version", "changes", "older"),
    [(1, {"strategy": "passing", "devices": 0}, "that host"), (99, {"alike": ["of another kind"]}, "the switch")],
)
def test_all_hosts_hear_of_a_protocol_version_that_the_switch_doesnt_speak(foreign_first, version, changes, older):
    @scenario()
    async def run(switch):
        async def foreign():
            host = await switch.connect()
            host.send(join_of_version(version, switch, 1, **changes))
            return host

        hosts = [await foreign()] if foreign_first else []
        hosts.append(await switch.join(0, alike={"jax": "1"}))
        hosts += [] if foreign_first else [await foreign()]
        for host in hosts:
            refusal = await host.refusal()
            assert f"protocol version {messages.PROTOCOL_VERSION}, rank 1 of job 'a' version {version}." in refusal
            assert f"Upgrade jax_passing on {older}:" in refusal

    run()


@scenario()
async def test_hosts_that_all_speak_another_version_are_refused(switch):
    hosts = [await switch.connect() for _ in range(2)]
    for rank, host in enumerate(hosts):
        host.send(join_of_version(1, switch, rank))
    for host in hosts:
        assert "ranks 0, 1 of job 'a' version 1. Upgrade jax_passing on those hosts" in await host.refusal()


@scenario()
async def test_a_host_may_call_a_fact_as_we_call_the_protocols_version(switch):
    hosts = [await switch.join(rank, alike={"protocol version": "no number" * rank}) for rank in range(2)]
    for host in hosts:
        assert "has protocol version 'no number', rank 0 has none" in await host.refusal()


@scenario()
async def test_a_join_of_our_version_with_unknown_fields_is_malformed(switch):
    host = await switch.connect()
    host.send(join_of_version(messages.PROTOCOL_VERSION, switch, 0, surprise=1))
    assert await host.receive() is None
    assert switch.plane.stats()["messages_malformed"] == 1


@scenario()
async def test_nobody_may_know_the_links(switch):
    _, welcome = await switch.job()
    assert (welcome.link_gbit, welcome.switch_link_gbit) == (None, None)


@scenario()
async def test_what_the_data_plane_can_do(switch):
    switch.data_plane.lanes_per_chunk, switch.data_plane.whole_chunks, switch.data_plane.worker_limit = 64, True, 2
    _, welcome = await switch.job()
    assert (welcome.lanes_per_chunk, welcome.whole_chunks) == (64, True)
    waiting = [await switch.join(rank, 3, job="b", join_deadline_s=3.0) for rank in range(2)]
    await switch.has(0, 1, job="b")
    assert "adds up what 2 hosts send" in await (await switch.join(2, 3, job="b")).refusal()
    for host in waiting:
        assert "started with --parent" in await host.refusal()


@scenario()
async def test_a_device_whose_slots_nobody_can_look_into(switch):
    hosts, welcome = await switch.job()
    switch.data_plane.held = None
    hosts[0].send(messages.Query(welcome.slot_first, 0))
    told = await hosts[0].receive()
    assert (told.empty, told.missing) == (True, ())
    assert "no way to tell who is missing" in told.trouble


@scenario()
async def test_a_device_that_fails_to_say_what_its_slots_hold(switch):
    hosts, welcome = await switch.job()

    def refuse(slot, version):
        raise RuntimeError("no registers here")

    switch.data_plane.slot_version = refuse
    hosts[0].send(messages.Query(welcome.slot_first, 0), messages.Query())
    told = await hosts[0].receive()
    assert (told.empty, told.missing) == (True, ())
    assert "no way to tell who is missing" in told.trouble
    assert await hosts[0].receive() == messages.SlotState(left=())  # the second question's


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 1025}, "at most 1024 ranks"),
        ({"rank": 2}, "Rank 2 isn't below the world size 2"),
        ({"world_size": 3, "rank": 1}, "says world_size 3, but rank 0 of job 'a' said 2"),
        ({"rank": 1, "switches": ("x", "y")}, "Rank 1 lists 2 switches, rank 0 lists 1. All hosts of job"),
        ({"rank": 1, "switches": ("x",)}, "Ranks 1 and 0 differ in the switches that they list as number 1."),
        ({"rank": 0}, "Rank 0 of job 'a' was taken by a process at 127.0.0.1"),
    ],
)
def test_refusals_say_why(changes, message):
    @scenario()
    async def run(switch):
        waiting = await switch.join(0)
        await switch.has(0)
        refused = await switch.join(**{"rank": 1, "world_size": 2, **changes})
        assert message in await refused.refusal()
        other = await switch.join(1)  # the job hasn't suffered
        assert isinstance(await other.receive(), messages.Welcome)
        assert isinstance(await waiting.receive(), messages.Welcome)

    run()


@scenario()
async def test_a_running_job_takes_nobody_else(switch):
    hosts, _ = await switch.job()
    assert "is running (epoch 1) and rank 1 is in it" in await (await switch.join(1)).refusal()
    hosts[0].send(messages.Heartbeat())
    assert await hosts[0].receive() == messages.Heartbeat()


@scenario()
async def test_hosts_whose_packets_the_device_cannot_take_are_refused_as_they_join(switch):
    switch.data_plane.host = "2001:db8::1"
    assert "127.0.0.1 don't reach 2001:db8::1: one is IPv4, the other IPv6" in await (await switch.join()).refusal()
    switch.data_plane.host = "10.0.0.254"
    await switch.job()


@scenario()
async def test_those_who_wait_hear_why_another_host_was_refused(switch):
    waiting = await switch.join(0, join_deadline_s=3.0)
    await switch.has(0)
    await (await switch.join(1, switches=("x", "y"))).refusal()
    assert "One host was refused: Rank 1 lists 2 switches" in await waiting.refusal()


@scenario()
async def test_hosts_that_list_the_same_switches_in_another_order(switch):
    await switch.join(0, switches=(switch.instance, "y"))
    await switch.has(0)
    (epoch,) = switch.plane._jobs.epochs()
    message = "Ranks 1 and 0 differ in the switches that they list as number "
    refused = await (await switch.join(1, switches=("y", switch.instance))).refusal()
    assert message + "1, 2" in refused
    assert message in await (await switch.join(1, switches=("x", "y", switch.instance))).refusal()
    assert message in epoch.refusal  # for the one who waits


@scenario()
async def test_missing_ranks_are_named_at_the_join_deadline(switch):
    hosts = [await switch.join(rank, 4, join_deadline_s=2.0) for rank in (0, 2)]
    for host in hosts:
        message = await host.refusal()
        assert "didn't join" in message
        assert "anks 1, 3" in message or "anks 0, 1, 3" in message
    assert isinstance(await (await switch.join(0, 1)).receive(), messages.Welcome)  # nothing is left of them


@scenario()
async def test_who_gives_up_waiting_frees_the_rank(switch):
    gone = await switch.join(0)
    await switch.has(0)
    gone.writer.close()
    await switch.has()
    await switch.job()


# Slots and epochs.


@scenario(slots_per_job=512)
async def test_jobs_get_slots_of_their_own_until_none_are_left(switch):
    _, one = await switch.job(job="one")
    two_hosts, two = await switch.job(job="two")
    assert {one.slot_first, two.slot_first} == {0, 512}
    assert one.job_id != two.job_id
    waiting = [await switch.join(rank, job="three") for rank in range(2)]
    for host in waiting:
        assert "no 512 free slots of its 1024" in await host.refusal()
    for host in two_hosts:
        host.send(messages.Leave())
    assert await two_hosts[0].receive() == messages.Bye()
    _, three = await switch.job(job="three")
    assert three.slot_first == two.slot_first


@scenario()
async def test_epochs_increase(switch):
    for epoch in (1, 2, 3):
        hosts, welcome = await switch.job()
        assert welcome.epoch == epoch
        hosts[0].send(messages.Fail("DeadlineExceededError", "too late"))
        assert isinstance(await hosts[1].receive(), messages.Failed)
    assert [job.epoch for job in switch.data_plane.removed] == [1, 2, 3]


def _next_epoch(jobs: JobTable, name: str) -> tuple[int, int]:
    """(the job's number, its epoch's)."""
    host = messages.Join(messages.PROTOCOL_VERSION, name, 0, 2, ("y",), 1, "x", 1.0)
    join, member = rank_of_host(host, "h", Abilities("y", 1, 360, False, None)), Member(None, "x", ("h", 1), 0.0, 0.0)
    epoch = jobs._epoch_to_join(jobs._job(name), join, member)
    return epoch.job.number, epoch.number


def test_numbers_of_jobs_wrap_and_are_never_zero_or_in_use():
    jobs = JobTable(RecordingDataPlane(), SimulatedWorld(1), lease_s=1)
    jobs._number_last = 65534
    assert [jobs._job(name).number for name in "abc"] == [65535, 1, 2]
    jobs._number_last = 65534
    assert jobs._job("d").number == 3


def test_no_pair_of_job_and_epoch_comes_back():
    jobs = JobTable(RecordingDataPlane(), SimulatedWorld(1), lease_s=1)
    jobs._epoch_last[1] = 65533
    assert [_next_epoch(jobs, "a") for _ in range(4)] == [(1, 65534), (1, 65535), (2, 1), (2, 2)]
    # The numbers wrapped: 1 has no epochs left, 2 is a's, and the one who had 3 was forgotten.
    jobs._number_last, jobs._epoch_last[3] = 65535, 40
    assert _next_epoch(jobs, "b") == (3, 41)
    jobs._epoch_last.update(dict.fromkeys(range(1, 65536), 65535))
    with pytest.raises(RefusalError, match="restart it"):
        jobs._job("c")


@scenario()
async def test_a_data_plane_that_refuses_ends_the_joins_only(switch):
    switch.data_plane.refuses = True
    for host in [await switch.join(rank) for rank in range(2)]:
        assert "no table space" in await host.refusal()
    switch.data_plane.refuses = False
    _, welcome = await switch.job()
    assert welcome.slot_first == 0


@pytest.mark.parametrize("error", [DataPlaneError("it is off"), KeyError("what")], ids=repr)
def test_a_traceback_is_logged_of_what_nobody_expects_of_a_device(caplog, error):
    caplog.set_level("ERROR", logger="jax_passing.switch")

    def fail(*_):
        raise error

    @scenario()
    async def run(switch):
        hosts, welcome = await switch.job()
        good = vars(switch.data_plane)
        switch.data_plane.add_job = switch.data_plane.remove_job = switch.data_plane.slot_version = fail
        hosts[0].send(messages.Query(welcome.slot_first, 0), messages.Leave())
        hosts[1].send(messages.Leave())
        assert "no way to tell" in (await hosts[0].receive()).trouble
        assert [await host.receive() for host in hosts] == [messages.Bye()] * 2
        for host in [await switch.join(rank) for rank in range(2)]:
            assert str(error) in await host.refusal()
        del good["add_job"], good["remove_job"], good["slot_version"]
        switch.data_plane.running.clear()
        await switch.job()

    run()
    said = (
        "the data plane can't say what slot 0 holds",
        "the data plane didn't remove it",
        "the data plane refused it",
    )
    assert len(caplog.records) == len(said)
    for record, what in zip(caplog.records, said, strict=True):
        assert what in record.getMessage()
        assert record.getMessage().endswith(f": {error}")
        assert bool(record.exc_info) == isinstance(error, KeyError)


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=30), st.randoms(use_true_random=False))
def test_the_partition_never_overlaps(counts, random):
    partition, held = SlotPartition(32), {}
    for count in counts:
        first = partition.allocate(count)
        if first is None:
            assert held
            freed = random.choice(list(held))
            partition.free(freed)
            del held[freed]
            continue
        assert first % count == 0
        assert first + count <= 32
        assert all(first + count <= other or other + size <= first for other, size in held.items())
        held[first] = count


# Multicast or unicast.

GROUP = Group("239.192.0.1", 7172, "127.0.0.1")


async def offered(switch, world_size=2):
    """All ranks have joined, and were offered the group."""
    switch.data_plane.offered = GROUP
    hosts = [await switch.join(rank, world_size) for rank in range(world_size)]
    offers = [await host.receive() for host in hosts]
    assert len(set(offers)) == 1
    assert offers[0] == messages.GroupOffer("239.192.0.1", 7172, 1, 1, offers[0].nonce)
    assert not switch.data_plane.running
    return hosts, offers[0].nonce


@scenario()
async def test_a_group_that_all_hear_is_used(switch):
    hosts, nonce = await offered(switch)
    for host in hosts:
        assert not switch.data_plane.probes
        host.send(messages.GroupReady(nonce))
    await until(lambda: switch.data_plane.probes)
    assert switch.data_plane.probes[0] == (1, 1, nonce)
    for host in hosts:
        host.send(messages.GroupHeard(nonce))
    for host in hosts:
        assert (await host.receive()).multicast
    assert switch.data_plane.running[1].group == GROUP


@scenario()
async def test_a_group_that_one_doesnt_hear_is_not_used(switch):
    hosts, nonce = await offered(switch, 3)
    for host in hosts:
        host.send(messages.GroupReady(nonce))
    for host in hosts[1:]:
        host.send(messages.GroupHeard(nonce))
    for host in hosts:
        assert not (await host.receive()).multicast
    assert switch.data_plane.running[1].group is None
    assert len(switch.data_plane.probes) == ROUNDS
    hosts[0].send(messages.GroupHeard(nonce), messages.Heartbeat())  # too late
    assert await hosts[0].receive() == messages.Heartbeat()
    assert switch.data_plane.running[1].group is None


@scenario()
async def test_hosts_that_never_answer_the_offer_get_unicast(switch):
    hosts, nonce = await offered(switch)
    hosts[0].send(messages.GroupReady(nonce))
    for host in hosts:
        assert not (await host.receive()).multicast
    assert not switch.data_plane.probes


@scenario()
async def test_a_host_that_cant_join_the_group_says_so(switch):
    hosts, nonce = await offered(switch)
    hosts[0].send(messages.GroupReady(nonce, "IPv6"))
    for host in hosts:
        assert not (await host.receive()).multicast
    assert not switch.data_plane.probes


@scenario()
async def test_a_data_plane_that_cant_send_to_the_group_means_unicast(switch):
    hosts, nonce = await offered(switch)
    switch.data_plane.offered = None  # it refuses any other
    for host in hosts:
        host.send(messages.GroupReady(nonce))
    for host in hosts:
        assert not (await host.receive()).multicast


@scenario()
async def test_who_goes_while_the_group_is_probed_is_waited_for_again(switch):
    hosts, nonce = await offered(switch)
    for host in hosts:
        host.send(messages.GroupReady(nonce))
    await until(lambda: switch.data_plane.probes)
    hosts[1].writer.close()
    await switch.has(0)
    await asyncio.sleep(0.3)
    assert not switch.data_plane.running
    hosts[1] = await switch.join(1)
    again = [await host.receive() for host in hosts]
    assert again[0] == again[1]
    assert again[0].nonce != nonce
    for host in hosts:  # what was said of the first attempt doesn't count
        host.send(messages.GroupReady(nonce), messages.GroupHeard(nonce), messages.GroupReady(again[0].nonce))
    await asyncio.sleep(0.02)
    assert not switch.data_plane.running
    for host in hosts:
        host.send(messages.GroupHeard(again[0].nonce))
    for host in hosts:
        assert (await host.receive()).multicast


@scenario()
async def test_a_rank_is_taken_while_the_group_is_probed(switch):
    hosts, _ = await offered(switch)
    assert "Rank 1 of job 'a' was taken" in await (await switch.join(1)).refusal()
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


@scenario()
async def test_one_rank_needs_no_group(switch):
    switch.data_plane.offered = GROUP
    _, welcome = await switch.job(1)
    assert not welcome.multicast


@scenario()
async def test_a_group_that_is_lost_is_given_up_for_all(switch):
    hosts, nonce = await offered(switch, 3)
    for host in hosts:
        host.send(messages.GroupReady(nonce), messages.GroupHeard(nonce))
    for host in hosts:
        assert (await host.receive()).multicast
    for host in hosts[1:]:
        host.send(messages.GroupLost(), messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()
    assert switch.data_plane.stopped == [1]  # once
    assert switch.plane.stats()["groups_lost"] == 1


def test_shutting_down_while_a_group_is_probed():
    async def run():
        async with Switch() as switch:
            hosts, _ = await offered(switch)
        for host in hosts:
            assert (await host.receive()).kind == "SwitchLostError"

    asyncio.run(run())


# While a job runs.


@scenario()
async def test_rank_0_is_relayed_to_all_others_in_order(switch):
    hosts, _ = await switch.job(3)
    sent = [bytes([number]) * (number * 997) for number in range(100)] + [b"x" * messages.RELAY_BYTES_MAX]
    hosts[0].send(*[messages.Relay(payload) for payload in sent])
    for host in hosts[1:]:
        assert [(await host.receive()).payload for _ in sent] == sent


@scenario()
async def test_a_host_that_asks_and_doesnt_read_is_lost(switch):
    switch.data_plane.stats = lambda: {"x" * 60_000: 1}
    hosts, _ = await switch.job(2)
    hosts[0].send(*[messages.CountersQuery()] * 1000)
    failed = await hosts[1].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))
    assert "asks and doesn't read the answers" in failed.message
    await until(lambda: not switch.server._streams)


@scenario()
async def test_a_host_that_says_much_lets_others_speak(switch):
    hosts, _ = await switch.job(1)
    lines, lines_at_once = 0, []
    dispatch = switch.plane._dispatcher.dispatch

    def count(*args):
        nonlocal lines
        lines += 1
        dispatch(*args)

    switch.plane._dispatcher.dispatch = count
    hosts[0].send(messages.encode(messages.Heartbeat()) * 5000)
    while lines < 5000:
        before = lines
        await asyncio.sleep(0)
        lines_at_once.append(lines - before)
    assert max(lines_at_once) < 10


@scenario()
async def test_a_host_that_doesnt_read_is_lost_not_waited_for(switch):
    hosts, _ = await switch.job(3)
    for _ in range(64):
        hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
        await hosts[0].writer.drain()
        relayed = await hosts[2].receive()
        if isinstance(relayed, messages.Failed):
            break
    assert (relayed.kind, relayed.ranks) == ("HostLostError", (1,))
    assert "stopped reading" in relayed.message


@scenario()
async def test_queries_name_the_missing_ranks(switch):
    hosts, welcome = await switch.job(4)
    hosts[2].send(messages.Leave())
    (epoch,) = switch.plane._jobs.epochs()
    await until(lambda: epoch.left == {2})
    hosts[0].send(messages.Query(welcome.slot_first + 3, 1))
    assert await hosts[0].receive() == messages.SlotState(
        left=(2,), empty=False, sequence=5, complete=False, missing=(1, 3)
    )
    hosts[0].send(messages.Query())
    assert await hosts[0].receive() == messages.SlotState(left=(2,))


@scenario()
async def test_slots_of_another_job_cant_be_queried(switch):
    _, other = await switch.job(job="other")
    hosts, _ = await switch.job()
    hosts[0].send(messages.Query(other.slot_first, 0))
    failed = await hosts[0].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))


@scenario()
async def test_counters_are_told_to_who_asks(switch):
    hosts, _ = await switch.job()
    hosts[1].send(messages.CountersQuery())
    assert await hosts[1].receive() == messages.Counters({"added": 7})


@scenario()
async def test_leave_is_a_barrier(switch):
    hosts, _ = await switch.job(3)
    for host in hosts[:2]:
        host.send(messages.Leave(), messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()
    assert switch.data_plane.running
    hosts[2].send(messages.Leave())
    for host in hosts:
        assert await host.receive() == messages.Bye()
        assert await host.receive() is None
    assert not switch.data_plane.running


@scenario()
async def test_who_left_may_go(switch):
    hosts, _ = await switch.job()
    hosts[0].send(messages.Leave())
    (epoch,) = switch.plane._jobs.epochs()
    await until(lambda: epoch.left == {0})
    hosts[0].writer.close()
    await until(lambda: len(switch.server._streams) == 1)
    hosts[1].send(messages.Leave())
    assert await hosts[1].receive() == messages.Bye()


# Failing.


@scenario()
async def test_a_closed_connection_fails_the_job_at_once(switch):
    hosts, _ = await switch.job(3)
    bystanders, _ = await switch.job(job="b")
    hosts[1].writer.close()
    for host in (hosts[0], hosts[2]):
        failed = await host.receive()
        assert (failed.kind, failed.ranks) == ("HostLostError", (1,))
        assert "Rank 1 closed its connection (job 'a', epoch 1, world size 3)" in failed.message
        assert await host.receive() is None
    bystanders[0].send(messages.Heartbeat())
    assert await bystanders[0].receive() == messages.Heartbeat()
    await switch.job()  # the ranks are free again


@scenario(lease_s=1.5)  # this process stands for all hosts, and may be stopped for a while
async def test_a_silent_host_is_lost_when_its_lease_ends(switch):
    hosts, _ = await switch.job()
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat():
        hosts[0].send(messages.Heartbeat())
        answer = await hosts[0].receive()
        await asyncio.sleep(0.05)
    assert (answer.kind, answer.ranks) == ("HostLostError", (1,))
    assert "Rank 1 was silent for 1.5 s" in answer.message
    assert (await hosts[1].receive()).ranks == (1,)  # it may only have been stopped


@scenario()
async def test_a_host_that_fails_tells_all_others(switch):
    hosts, _ = await switch.job(3)
    hosts[2].send(messages.Fail("ProgramMismatchError", "other sums"), messages.Leave())
    for host in hosts[:2]:
        assert await host.receive() == messages.Failed("ProgramMismatchError", "other sums (Reported by rank 2.)")
    assert await hosts[2].receive() is None


@scenario()
async def test_the_same_process_may_come_back_before_its_old_connection_is_gone(switch):
    hosts = [await switch.join(rank, instance=f"p{rank}") for rank in range(2)]
    assert isinstance(await hosts[1].receive(), messages.Welcome)
    again = [await switch.join(0, instance="p0")]
    failed = await hosts[1].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))
    again.append(await switch.join(1, instance="p1"))
    assert (await again[0].receive()).epoch == 2
    assert (await again[1].receive()).epoch == 2


def test_shutting_down_tells_everybody():
    async def run():
        async with Switch() as switch:
            hosts, _ = await switch.job()
            waiting = await switch.join(0, job="waits")
            await switch.has(0, job="waits")
        for host in (*hosts, waiting):
            failed = await host.receive()
            assert (failed.kind, failed.ranks) == ("SwitchLostError", ())
            assert "shutting down" in failed.message
        assert not switch.data_plane.running

    asyncio.run(run())


def test_shutting_down_doesnt_wait_for_who_doesnt_read():
    async def run():
        async with Switch() as switch:
            hosts, _ = await switch.job()
            for _ in range(7):
                hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
                await hosts[0].writer.drain()
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(run(), 30))


@scenario(lease_s=1.0)
async def test_a_fault_while_one_job_is_watched_ends_no_other(switch):
    """Neither the faulty job's hosts nor others wait for anything: those hear of it, these are watched as before."""
    table = switch.plane._jobs
    end_waits, faulty = table.end_waits, {"faulty", "forming"}

    def fail_for_some(epoch, now):
        if epoch.job.name in faulty:
            raise RuntimeError(f"no such thing in {epoch.job.name}")
        end_waits(epoch, now)

    hosts, _ = await switch.job(job="faulty")
    waiting = await switch.join(0, 2, job="forming")
    others, _ = await switch.job(job="other")
    await switch.has(0, job="forming")
    table.end_waits = fail_for_some
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
    table = switch.plane._jobs
    end_waits = table.end_waits
    table.end_waits = lambda epoch, now: fail() if epoch.job.name == "a" else end_waits(epoch, now)
    table.fail = fail
    await until(lambda: switch.plane.stats().get("watches_failed", 0) > 1)
    del table.fail
    others, _ = await switch.job(job="b")
    others[0].send(messages.Heartbeat())
    assert await others[0].receive() == messages.Heartbeat()
    assert switch.is_watched


# Input that nobody of ours sends.

BAD_LINES = [
    b"\n",
    b"GET / HTTP/1.1\r\n",
    b"{}\n",
    b"[]\n",
    b'{"type":"join"}\n',
    b'{"type":"heartbeat"}\n',
    b'{"type":"leave","more":1}\n',
    b'{"type":"relay","payload":"' + b"A" * 8 + b'"}\n',
    b'{"type":"relay","payload":"!"}\n',
    b'{"type":"query","slot":-1}\n',
    b'{"type":"query","slot":999999999999999999999999}\n',
    b'{"type":"fail","kind":"KeyboardInterrupt","message":""}\n',
    b'{"type":"fail","kind":"HostLostError","message":"","ranks":[63]}\n',
    b'{"type":"welcome"}\n',
    b"\xff\xfe\n",
    b'{"type":"fail","kind":"HostLostError","message":"' + b"m" * messages.LINE_BYTES_MAX + b'"}\n',
    b"x" * (messages.RELAY_LINE_BYTES_MAX + 1) + b"\n",
    b"[" * 10000 + b"\n",
    b"no end",
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:24].decode(errors="replace"))
def test_a_bad_line_costs_its_sender_the_connection_alone(line):
    @scenario()
    async def run(switch):
        stranger = await switch.connect()
        stranger.send(line)
        if not line.endswith(b"\n"):
            stranger.writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert await stranger.receive() is None

        bystanders, _ = await switch.job(job="b")
        hosts, _ = await switch.job()
        if line == b'{"type":"heartbeat"}\n':
            return
        hosts[1].send(line)
        if not line.endswith(b"\n"):
            hosts[1].writer.write_eof()
        failed = await hosts[0].receive()
        assert (failed.kind, failed.ranks) == ("HostLostError", (1,))
        bystanders[0].send(messages.Heartbeat())
        assert await bystanders[0].receive() == messages.Heartbeat()
        assert switch.plane.stats()["messages_malformed"] == 2

    run()


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b"", "it has said nothing for 0.05 s"), (b"no end", "the connection ended inside a line"), (b"{}\n", "Object")],
    ids=["silence", "half a line", "no message"],
)
def test_the_log_says_why_a_connection_is_closed(caplog, monkeypatch, line, reason):
    caplog.set_level("WARNING", logger="jax_passing.switch")
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 0.05)

    @scenario()
    async def run(switch):
        stranger = await switch.connect()
        stranger.send(line)
        if line and not line.endswith(b"\n"):
            stranger.writer.write_eof()
        assert await stranger.receive() is None
        host, port, *_ = stranger.writer.get_extra_info("sockname")
        (record,) = caplog.records
        assert record.getMessage().startswith(f"closing the connection of {host}:{port}: {reason}")
        assert switch.plane.stats()["messages_malformed"] == 1

    run()


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(
    ["join", "relay", "query", "heartbeat", "leave", "fail", "welcome", "rackjoin", "rankjoin", "left", "ask", ""]
)
fields = st.sampled_from(["rank", "world_size", "job", "slot", "version", "payload", "kind", "message", "ranks"])
lines = st.binary(max_size=64).map(lambda data: data.replace(b"\n", b"") + b"\n") | st.builds(
    lambda kind, rest: msgspec.json.encode({**rest, "type": kind}) + b"\n",
    kinds,
    st.dictionaries(fields, json, max_size=4),
)


@settings(max_examples=40)
@given(st.lists(lines, max_size=8), st.booleans())
def test_random_lines_never_stop_the_switch(several, joined):
    @scenario()
    async def run(switch):
        host = (await switch.job())[0][1] if joined else await switch.connect()
        with contextlib.suppress(ConnectionError):
            host.send(*several)
            await host.writer.drain()
        host.writer.close()
        await switch.job(job="next")
        assert switch.is_watched

    run()


@given(lines)
def test_decoding_raises_one_kind_of_error(line):
    for decode in (messages.decode_from_member, messages.decode_from_switch, messages.decode_from_parent):
        with contextlib.suppress(msgspec.DecodeError):
            decode(line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job_id", 0),
        ("job_id", 1 << 16),
        ("epoch", 0),
        ("epoch", 1 << 16),
        ("slot_first", -1),
        ("slot_first", 1 << 16),
        ("slot_count", 0),
        ("worker", 64),
        ("lanes_per_chunk", 0),
        ("worker_limit", 65),
    ],
)
def test_a_welcome_has_numbers_that_fit_into_packets(name, value):
    good = messages.Welcome(0xFFFF, 1, 0xFF00, 256, 63, 360, 30.0)
    for decode in (messages.decode_from_switch, messages.decode_from_parent):
        assert decode(messages.encode(good)) == good
        with pytest.raises(msgspec.ValidationError, match=name):
            decode(messages.encode(msgspec.structs.replace(good, **{name: value})))
