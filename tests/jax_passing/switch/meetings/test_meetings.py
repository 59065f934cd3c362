"""Hosts that meet at a switch before they join."""

import asyncio
import re

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.meetings import meetings
from support.switch.control import scenario, until
from support.switch.seats import meet, met, seat


@scenario()
async def test_ranks_are_the_launchers_at_first(switch):
    hosts = [await seat(switch, rank, 3, 3) for rank in (2, 0, 1)]
    heard = await met(*hosts)
    assert [(one.rank, one.survivors, one.step) for one in heard] == [(2, 0, None), (0, 0, None), (1, 0, None)]


@scenario()
async def test_survivors_come_first_and_agree_on_the_least_step(switch):
    hosts = [await seat(switch, rank, 4, 1) for rank in range(4)]
    (first, *_) = await met(*hosts)
    hosts[0].writer.close()
    newcomer = await seat(switch, 0, 4, 1, instance="newcomer")
    for rank, step in ((3, 8), (1, 7), (2, 8)):
        await asyncio.sleep(0.05)
        assert not hosts[rank].reader._buffer, "the others are waited for"
        hosts[rank].send(meet(rank, 4, 1, wait_s=0.0, step=step, meeting=first.meeting, hosts=3))
    heard = await met(*hosts[1:], newcomer)
    assert [(one.rank, one.survivors, one.step) for one in heard] == [(0, 3, 7), (1, 3, 7), (2, 3, 7), (3, 3, 7)]


@scenario()
async def test_a_host_that_vanished_is_waited_for_once(switch):
    """Its machine lost power: its connection never ends by itself."""
    hosts = [await seat(switch, rank, 3, 1) for rank in range(3)]
    (first, *_) = await met(*hosts)
    joined = [await switch.join(rank, 3, job="a", instance=f"host {rank}") for rank in range(3)]
    for host in joined:
        assert isinstance(await host.receive(), messages.Welcome)
    epoch = switch.plane.jobs.of("a").epoch
    switch.plane.jobs.lose(epoch, epoch.member_of(2), "was silent for 30 s")
    for rank in (0, 1):
        hosts[rank].send(meet(rank, 3, 1, wait_s=0.0, step=5, meeting=first.meeting, hosts=2))
    (second, *_) = await met(*hosts[:2])
    hosts[1].writer.close()
    await asyncio.sleep(0.05)
    hosts[0].send(meet(0, 3, 1, wait_s=0.0, step=6, meeting=second.meeting, hosts=1))
    await met(hosts[0])
    assert await hosts[2].reader.read() == b"", "its seat is gone"


def test_who_ends_an_epoch_by_meeting_waits_for_no_other_look(monkeypatch):
    monkeypatch.setattr(meetings, "LOOK_S", 20.0)

    @scenario()
    async def run(switch):
        host = await seat(switch, 0, 1, 1)
        (first,) = await met(host)
        joined = await switch.join(0, 1, instance="host 0")
        assert isinstance(await joined.receive(), messages.Welcome)
        host.send(meet(0, 1, 1, wait_s=0.0, step=5, meeting=first.meeting, hosts=1))
        await met(host)

    run()


@scenario(lease_s=3.0)  # these hosts say nothing while they wait
async def test_who_ran_elsewhere_and_lives_is_waited_for_and_others_for_a_while(switch):
    """Their switch is gone: of four, three are here, and one of these is busy."""
    ran = {"wait_s": 0.0, "step": 6, "meeting": 11, "hosts": 4}
    waiting = [await seat(switch, rank, 4, 1, **ran) for rank in (0, 1)]
    busy = await seat(switch, 2, 4, 1, ready=False, **ran)
    await asyncio.sleep(1.9)  # longer than anybody who doesn't say that it lives is waited for
    for host in waiting:
        host.send(messages.Query())
        assert re.search("rank 2.* and 1 of the hosts that ran didn't come", (await host.receive()).trouble, re.I)
    busy.send(meet(2, 4, 1, **ran))
    await met(*waiting, busy)


@scenario()
async def test_half_of_the_hosts_are_enough_where_all_met_last(switch):
    hosts = [await seat(switch, rank, 4, 1, quorum=3) for rank in range(4)]
    (first, *_) = await met(*hosts)
    for host in hosts[2:]:
        host.writer.close()
    again = {"wait_s": 0.0, "step": 6, "quorum": 3, "hosts": 4}
    for rank in (0, 1):
        hosts[rank].send(meet(rank, 4, 1, meeting=first.meeting, **again))
    await met(*hosts[:2])


@scenario()
async def test_half_of_the_hosts_are_not_enough_elsewhere(switch):
    ran = {"wait_s": 0.0, "step": 6, "meeting": 11, "quorum": 3, "hosts": 4, "deadline_s": 0.3}
    hosts = [await seat(switch, rank, 4, 1, **ran) for rank in (0, 1)]
    assert "it needs 3 hosts. 2 of the hosts that ran didn't come" in await hosts[0].refusal("TooFewHostsError")


@scenario()
async def test_half_are_enough_after_a_meeting_that_came_to_nothing(switch):
    """Two of four meet, and don't all join: they go by the meeting before it, and the switch knows that one, too."""
    hosts = [await seat(switch, rank, 4, 1, quorum=3) for rank in range(4)]
    (first, *_) = await met(*hosts)
    joined = [await switch.join(rank, 4, job="a", instance=f"host {rank}") for rank in range(4)]
    for host in joined:
        assert isinstance(await host.receive(), messages.Welcome)
    for host in hosts[2:] + joined:
        host.writer.close()
    for _ in range(2):
        for rank in (0, 1):
            hosts[rank].send(meet(rank, 4, 1, wait_s=0.0, step=6, meeting=first.meeting, quorum=3, hosts=4))
        await met(*hosts[:2])


@scenario()
async def test_a_state_of_another_time_doesnt_count(switch):
    """A host that was stopped comes to a switch that was restarted, before the others that went on."""
    stopped = await seat(switch, 0, 3, 1, wait_s=0.0, step=6, meeting=11, hosts=3, instance="stopped")
    others = [await seat(switch, rank, 3, 1, wait_s=0.0, step=9, meeting=12, hosts=2) for rank in (0, 1)]
    heard = await met(*others, stopped)
    assert [(one.rank, one.survivors, one.step) for one in heard] == [(0, 2, 9), (1, 2, 9), (2, 2, 9)]


@scenario()
async def test_too_few_hear_who_is_here(switch):
    host = await seat(switch, 1, 3, 2, deadline_s=0.2)
    host.send(messages.Query())
    assert "Here is rank 1 (127.0.0.1), and it needs 2 hosts" in (await host.receive()).trouble
    refusal = await host.refusal("TooFewHostsError")
    assert "within the 0.2 s that rank 1 waited. Here is rank 1 (127.0.0.1), and it needs 2 hosts" in refusal
    assert "meetings" not in switch.plane.held()


@scenario()
async def test_hosts_that_dont_agree_on_being_elastic(switch):
    await switch.join(0, 2, job="a")
    host = await seat(switch, 1, 2, 2, deadline_s=0.2)
    assert "Rank 0 waits to join this job without meeting anybody" in await host.refusal("TooFewHostsError")


@scenario()
async def test_one_that_lives_and_doesnt_come_is_named(switch):
    hosts = [await seat(switch, rank, 2, 2) for rank in range(2)]
    (first, _) = await met(*hosts)
    hosts[1].send(messages.Query())  # sent before it has heard that all are here
    again = meet(1, 2, 2, wait_s=0.0, deadline_s=0.2, step=3, meeting=first.meeting, hosts=2)
    hosts[1].send(again)
    assert "Rank 0 (127.0.0.1) didn't come." in await hosts[1].refusal("TooFewHostsError")


@scenario()
async def test_a_standby_waits_for_somebody_who_can_be_nowhere_else(switch):
    aside = await seat(switch, 0, 2, 2, aside=True)
    await seat(switch, 1, 2, 2, aside=True, deadline_s=0.2)
    alone = await seat(switch, 1, 2, 2, instance="host 1")
    heard = await met(aside, alone)
    assert [one.rank for one in heard] == [0, 1]


@scenario()
async def test_a_newcomer_ends_an_epoch_that_has_room_and_no_other(switch):
    strangers, _ = await switch.job(2)  # has never met
    await seat(switch, 5, 8, 1)
    await asyncio.sleep(0.2)
    strangers[0].send(messages.Heartbeat())
    assert await strangers[0].receive() == messages.Heartbeat()


async def running_job(switch, *, wanted, hosts=2):
    """Returns the seats of these hosts, the number of their meeting, and their connections in the job."""
    seats = [await seat(switch, rank, wanted, hosts, wait_s=0.0) for rank in range(hosts)]
    (first, *_) = await met(*seats)
    joined = [await switch.join(rank, hosts, job="a", instance=f"host {rank}") for rank in range(hosts)]
    for host in joined:
        assert isinstance(await host.receive(), messages.Welcome)
    return seats, first.meeting, joined


@scenario()
async def test_a_newcomer_compiles_first_and_ends_the_epoch_then(switch):
    _, _, joined = await running_job(switch, wanted=3)
    newcomer = await seat(switch, 0, 3, 1, instance="newcomer", rehearses=True)
    assert await newcomer.receive() == messages.Rehearse(3)
    joined[0].send(messages.Heartbeat())
    assert await joined[0].receive() == messages.Heartbeat(), "the job runs on"
    newcomer.send(meet(0, 3, 1, instance="newcomer"))
    assert (await joined[0].receive()).kind == "HostJoinedError"


@scenario()
async def test_one_for_whom_there_is_no_room_compiles_too(switch):
    _, _, joined = await running_job(switch, wanted=2)
    spare = await seat(switch, 0, 2, 1, instance="spare", rehearses=True)
    assert await spare.receive() == messages.Rehearse(2)
    spare.send(meet(0, 2, 1, instance="spare"))
    joined[0].send(messages.Heartbeat())
    assert await joined[0].receive() == messages.Heartbeat(), "the job runs on"


@scenario()
async def test_nobody_waits_for_a_host_that_compiles(switch):
    seats, meeting, joined = await running_job(switch, wanted=4, hosts=3)
    compiles = await seat(switch, 0, 4, 1, instance="newcomer", rehearses=True)
    assert await compiles.receive() == messages.Rehearse(4)
    seats[2].writer.close()
    joined[2].writer.close()
    another = await seat(switch, 0, 4, 1, instance="another", rehearses=True)
    for rank in (0, 1):
        seats[rank].send(meet(rank, 4, 1, wait_s=0.0, step=5, meeting=meeting, hosts=2))
    (again, _) = await met(*seats[:2])
    for rank in (0, 1):
        await switch.join(rank, 2, job="a", instance=f"host {rank}")
    assert await another.receive() == messages.Rehearse(3)
    compiles.send(meet(0, 4, 1, instance="newcomer"))
    for rank in (0, 1):
        seats[rank].send(meet(rank, 4, 1, wait_s=0.0, step=6, meeting=again.meeting, hosts=2))
    heard = await met(*seats[:2], compiles)
    assert [(one.rank, one.survivors, one.step) for one in heard] == [(0, 2, 6), (1, 2, 6), (2, 2, 6)]


@scenario()
async def test_a_host_that_must_compile_is_taken_where_it_is_needed(switch):
    """The other one can't go on alone, or would rather wait than meet again."""
    for job, least, wait_s in (("a", 2, 0.0), ("b", 1, 20.0)):
        survivor = await seat(switch, 0, 2, least, job=job, wait_s=wait_s, step=3, meeting=7, hosts=1)
        newcomer = await seat(switch, 0, 2, least, job=job, instance="newcomer", rehearses=True)
        assert [one.survivors for one in await met(survivor, newcomer)] == [1, 1]


@scenario()
async def test_a_seat_that_is_lost_ends_a_join_that_waits_for_it(switch):
    seats = [await seat(switch, rank, 2, 1) for rank in range(2)]
    await met(*seats)
    joining = await switch.join(0, 2, instance="host 0")
    await switch.has(0)
    seats[1].writer.close()
    assert "one of them is gone" in await joining.refusal("HostLostError")


@scenario()
async def test_a_newcomer_that_isnt_like_the_others_is_refused_alone(switch):
    """Before the epoch is ended for it, and before it stands beside those that have met."""
    full, int8 = {"wire_dtype": "full"}, {"wire_dtype": "int8"}
    hosts = [await seat(switch, rank, 3, 2, wait_s=0.0, alike=full) for rank in range(2)]
    (first, _) = await met(*hosts)
    for rank in range(2):
        await switch.join(rank, 2, instance=f"host {rank}")
    await until(lambda: switch.plane.jobs.of("a").epoch.state is EpochState.RUNNING)
    text = (
        "This host has wire_dtype int8, the hosts that run job 'a' have full. All hosts of a job must be alike in "
        "this: set the same in jax_passing.init(wire_dtype=…) or JAX_PASSING_WIRE_DTYPE."
    )
    newcomer = await seat(switch, 2, 3, 2, alike=int8)
    assert await newcomer.refusal("ConfigError") == text
    epoch = switch.plane.jobs.of("a").epoch
    assert epoch.state is EpochState.RUNNING
    switch.plane.jobs.lose(epoch, epoch.member_of(0), "closed its connection")
    hosts[1].send(meet(1, 3, 2, wait_s=5.0, step=3, meeting=first.meeting, hosts=2, alike=full))
    newcomer = await seat(switch, 2, 3, 2, instance="another", alike=int8)
    assert await newcomer.refusal("ConfigError") == text
    hosts[0].send(meet(0, 3, 2, wait_s=0.0, step=3, meeting=first.meeting, hosts=2, alike=full))
    like_them = await seat(switch, 2, 3, 2, instance="right", alike=full)
    assert [one.rank for one in await met(*hosts, like_them)] == [0, 1, 2]


@scenario()
async def test_those_that_have_the_state_are_right_whoever_comes_first(switch):
    """The switch was restarted, and knows nobody."""
    full, int8 = {"wire_dtype": "full"}, {"wire_dtype": "int8"}
    wrong = [await seat(switch, rank, 4, 2, wait_s=0.0, instance=f"wrong {rank}", alike=int8) for rank in range(2)]
    await met(*wrong)
    joined = [await switch.join(rank, 2, instance=f"wrong {rank}") for rank in range(2)]
    assert all([isinstance(await host.receive(), messages.Welcome) for host in joined])
    right = [await seat(switch, rank, 4, 2, wait_s=0.0, step=9, meeting=11, hosts=2, alike=full) for rank in range(2)]
    assert isinstance(await joined[0].receive(), messages.Failed)
    wrong[0].send(meet(0, 4, 2, instance="wrong 0", alike=int8))
    assert "the hosts that run job 'a' have full" in await wrong[0].refusal("ConfigError")
    wrong[1].writer.close()
    assert [(one.rank, one.survivors) for one in await met(*right)] == [(0, 2), (1, 2)]


@scenario()
async def test_when_hosts_first_meet_nobody_is_refused_for_being_another(switch):
    await met(
        *[await seat(switch, rank, 2, 2, alike={"wire_dtype": wire}) for rank, wire in enumerate(("full", "int8"))]
    )


@scenario()
async def test_one_that_meets_nobody_is_kept_out_of_the_way_of_those_that_do(switch):
    hosts = [await seat(switch, rank, 2, 1) for rank in range(2)]
    await met(*hosts)
    stray = await switch.join(1, 4, job="a")
    assert "meet before they join, and this one hasn't. Set world_size_min" in await stray.refusal()
    joined = [await switch.join(rank, 2, instance=f"host {rank}") for rank in range(2)]
    assert all([isinstance(await host.receive(), messages.Welcome) for host in joined])


@scenario()
async def test_one_that_has_joined_without_meeting_goes_when_those_come_that_have_met(switch):
    stray = await switch.join(0, 2, job="a")  # at a switch that was restarted
    hosts = [await seat(switch, rank, 2, 2, step=9, meeting=11, hosts=2) for rank in range(2)]
    assert "have met before. Set world_size_min" in await stray.refusal()
    await met(*hosts)


@scenario()
async def test_a_newcomers_deadline_is_not_that_of_those_it_comes_to(switch):
    hosts = [await seat(switch, rank, 3, 2, wait_s=0.0) for rank in range(2)]
    (first, _) = await met(*hosts)
    hosts[0].send(meet(0, 3, 2, wait_s=0.0, step=3, meeting=first.meeting, hosts=2))
    newcomer = await seat(switch, 2, 3, 2, deadline_s=0.2)
    assert "Rank 1 (127.0.0.1) didn't come." in await newcomer.refusal("TooFewHostsError")
    hosts[1].send(meet(1, 3, 2, wait_s=0.0, step=3, meeting=first.meeting, hosts=2, started_as=2))
    assert [one.survivors for one in await met(*hosts)] == [2, 2]


@scenario()
async def test_nonsense_costs_the_seat(switch):
    for line in (b"{}\n", messages.encode(messages.Leave()), messages.encode(meet(0)).replace(b'"a"', b'"b"')):
        host = await seat(switch, 0)
        host.send(line)
        assert await host.receive() is None
    await until(lambda: "meetings" not in switch.plane.held())
