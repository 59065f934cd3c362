"""An operator drains a switch, ends jobs, and puts ranks out: what hosts hear, and who may say so."""

import re

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.admission import RefusalError
from support.switch.control import scenario, until
from support.switch.control_trees import in_tree, job
from support.switch.seats import meet, met, seat

ENDED, DRAINING = "EndedByOperatorError", "SwitchDrainingError"


def say(switch, action, owned=None, **of):
    command = messages.Command(messages.PROTOCOL_VERSION, action, **of)
    return switch.plane.operator.carry_out(command, "user root on the switch's machine", switch.name, owned)


async def hear_failure(host, ranks=()):
    failed = await host.receive()
    assert isinstance(failed, messages.Failed), failed
    assert (failed.kind, failed.ranks) == (ENDED, ranks)
    assert await host.receive() is None
    return failed.message


async def leave(hosts):
    for host in hosts:
        host.send(messages.Leave())
    for host in hosts:
        while not isinstance(await host.receive(), messages.Bye):
            pass


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_drain_lets_jobs_that_are_here_go_on_until_they_end(world_size):
    @scenario()
    async def run(switch):
        hosts, _ = await switch.job(world_size)
        done = say(switch, "drain", reason="maintenance at six")
        assert (done.text, done.jobs) == (f"The switch at {switch.name} drains: it admits no new job.", 1)
        for rank in range(world_size):
            why = await (await switch.join(rank, world_size, job="b")).refusal(DRAINING)
            assert (
                "drains it (maintenance at six): jobs that were here go on, and no other is admitted. Let job 'b'"
                in why
            )
        hosts[0].writer.close()  # it fails, and its hosts join again
        for host in hosts[1:]:
            assert (await host.receive()).kind == "HostLostError"
        hosts, _ = await switch.job(world_size)
        await leave(hosts)
        assert say(switch, "drain").jobs == 0
        await (await switch.join(0, world_size)).refusal(DRAINING)
        assert switch.plane.report.document()["refused_for"]["draining"] == world_size + 1
        say(switch, "undrain")
        await switch.job(world_size, job="b")

    run()


@scenario()
async def test_a_drain_waits_for_hosts_that_form_or_meet(switch):
    forming = await switch.join(0)
    meeting = await seat(switch, 0, 2, 2, job="b")
    meeting.send(messages.Query())
    await meeting.receive()
    assert say(switch, "drain").jobs == 2
    other = await switch.join(1)
    for host in (forming, other):
        assert isinstance(await host.receive(), messages.Welcome)
    last = await seat(switch, 1, 2, 2, job="b")
    await met(meeting, last)
    for rank in range(2):
        await switch.join(rank, 2, job="b", instance=f"host {rank}")
    await switch.has(0, 1, job="b")


@scenario()
async def test_jobs_of_a_jobs_devices_may_come_while_it_runs(switch):
    hosts, _ = await switch.job()
    say(switch, "drain")
    devices, _ = await switch.job(4, job="a/devices")
    await leave(devices)
    devices, _ = await switch.job(4, job="a/devices")
    await leave(hosts)
    await (await switch.join(0, 4, job="a")).refusal(DRAINING)


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_hosts_of_a_job_that_is_ended_hear_by_whom_and_why(world_size):
    @scenario()
    async def run(switch):
        hosts, _ = await switch.job(world_size)
        others, _ = await switch.job(world_size, job="b")
        assert (
            say(switch, "end", job="a", reason="wrong data").text
            == f"Job 'a' was ended at the switch at {switch.name}."
        )
        for host in hosts:
            text = await hear_failure(host)
            assert text.startswith(f"The operator of the switch at {switch.name} ended job 'a': wrong data.")
        (end,) = switch.plane.report.document()["ended"]
        assert "wrong data" in end["why"]
        await leave(others)
        await switch.job(world_size)  # an end is no drain

    run()


@scenario()
async def test_a_job_that_forms_ends_for_all_who_wait(switch):
    hosts = [await switch.join(rank, 3) for rank in range(2)]
    await switch.has(0, 1)
    say(switch, "end", job="a")
    for host in hosts:
        assert "ended job 'a'" in await host.refusal(ENDED)


@scenario()
async def test_hosts_that_wait_to_meet_hear_it_too(switch):
    hosts = [await seat(switch, rank, 3, 3) for rank in range(2)]
    hosts[1].send(messages.Query())
    await hosts[1].receive()
    say(switch, "end", job="a")
    for host in hosts:
        assert "ended job 'a'" in await host.refusal(ENDED)
    assert switch.plane.meetings.by_job == {}


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_others_of_an_elastic_job_go_on_without_a_rank(world_size):
    @scenario()
    async def run(switch):
        seats = [await seat(switch, rank, world_size, 1) for rank in range(world_size)]
        (first, *_) = await met(*seats)
        hosts = [await switch.join(rank, world_size, instance=f"host {rank}") for rank in range(world_size)]
        for host in hosts:
            assert isinstance(await host.receive(), messages.Welcome)
        done = say(switch, "end", job="a", rank=1, reason="it is slow")
        assert re.match(r"Rank 1 was put out of job 'a', epoch \d+\.", done.text)
        for host in hosts:
            text = await hear_failure(host, ranks=(1,))
            assert re.search(
                r"operator of the switch at \S+ put rank 1.* out of job 'a', epoch \d+: it is slow\.", text
            )
        stay = [one for rank, one in enumerate(seats) if rank != 1]
        for rank, one in enumerate(seats):
            if rank != 1:
                one.send(meet(rank, world_size, 1, wait_s=0.0, step=5, meeting=first.meeting, hosts=world_size))
        await met(*stay)  # without a wait for the one that is out, whose seat is still open

    run()


@scenario()
async def test_one_rank_of_a_job_that_forms_makes_room_for_another(switch):
    wrong, _ = await switch.join(0, 3), await switch.join(1, 3)
    await switch.has(0, 1)
    say(switch, "end", job="a", rank=0)
    assert "put rank 0 out of job 'a'" in await wrong.refusal(ENDED)
    await switch.has(1)
    await switch.join(0, 3)
    await switch.has(0, 1)


@scenario()
async def test_jobs_and_ranks_that_arent_here(switch):
    await switch.job()
    with pytest.raises(RefusalError, match=r"^No job 'b' is at the switch at \S+\. There is 'a'\.$"):
        say(switch, "end", job="b")
    with pytest.raises(RefusalError, match=r"^No job 'b' is at the switch at \S+\.$"):  # others' names are nobody's
        say(switch, "end", owned="b", job="b")
    with pytest.raises(RefusalError, match=r"Rank 5 isn't in that job at this switch, which has ranks 0, 1 of it\."):
        say(switch, "end", job="a", rank=5)


@scenario()
async def test_the_owner_of_a_key_may_end_that_job_alone(switch):
    hosts, _ = await switch.job()
    await switch.job(job="b")
    for action, of in (("end", {"job": "b"}), ("drain", {}), ("undrain", {})):
        with pytest.raises(RefusalError, match="The key of job 'a' lets its owners end that job, and no more"):
            say(switch, action, owned="a", **of)
    say(switch, "end", owned="a", job="a")
    for host in hosts:
        await hear_failure(host)


@scenario()
async def test_nobody_proves_anything_in_the_clear(switch):
    await switch.job()
    stranger = await switch.connect()
    stranger.send(messages.Command(messages.PROTOCOL_VERSION, "end", job="a"))
    assert "Operators prove who they are, and 127.0.0.1" in await stranger.refusal()
    assert len(switch.plane.jobs.epochs()) == 1


@in_tree(racks=2)
async def test_a_rank_below_a_racks_switch(tree, root, rack, other):
    hosts, *_ = await job(rack, other)
    say(root, "end", job="a", rank=3)
    for host in hosts:
        await hear_failure(host, ranks=(3,))
    hosts, *_ = await job(rack, other)
    say(rack, "end", job="a")
    for host in hosts:
        await hear_failure(host)


@in_tree(racks=2)
async def test_a_root_that_drains_refuses_hosts_through_their_racks(tree, root, rack, other):
    say(root, "drain", reason="new cables")
    hosts = [await rack.join(0, 2), await other.join(1, 2)]
    for host in hosts:
        assert "drains it (new cables)" in await host.refusal(DRAINING)


@in_tree(racks=1)
async def test_new_jobs_dont_meet_at_a_switch_that_drains(tree, root, rack):
    say(root, "drain")
    for switch in (root, rack):
        host = await seat(switch, 0, 2, 2, job="new")
        assert "drains it: jobs that were here" in await host.refusal(DRAINING)
    assert root.plane.meetings.by_job == {}


@in_tree(racks=2)
async def test_a_job_that_forms_ends_at_all_racks_and_a_rank_at_its_own(tree, root, rack, other):
    hosts = [await rack.join(0, 4), await rack.join(1, 4), await other.join(2, 4)]
    await root.has(0, 1, 2)
    say(root, "end", job="a", rank=1)
    assert "put rank 1 out of job 'a'" in await hosts.pop(1).refusal(ENDED)
    await root.has(0, 2)
    say(root, "end", job="a")
    for host in hosts:
        assert "ended job 'a'" in await host.refusal(ENDED)


@in_tree(racks=1)
async def test_a_racks_switch_sends_hosts_away_that_wait_to_meet_at_its_parent(tree, root, rack):
    waits = await seat(rack, 0, 2, 2)
    await until(lambda: "meetings" in root.plane.held())
    assert "ended at the switch" in say(rack, "end", job="a", reason="bad data").text
    refused = await waits.receive()
    assert (refused.kind, "bad data" in refused.message) == (ENDED, True)
    assert await waits.receive() is None
    await until(lambda: "meetings" not in root.plane.held())
    assert "jobs whose hosts meet at the parent" not in rack.plane.held()
