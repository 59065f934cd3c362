"""A switch hears from hosts that meet there what they lost elsewhere."""

from types import SimpleNamespace

import pytest
from msgspec import structs

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.meetings.interruptions import interruption_of
from support.switch.control import scenario
from support.switch.seats import meet, met, seat

LOST = messages.Interruption("SwitchLostError", "Rank 0 lost the switch at 10.0.0.9:7171: closed", "10.0.0.9:7171", 0.5)


async def recovered(switch, *ranks, world_size=3, **said):
    """Hosts that ran elsewhere meet and run here. Returns what the status says of it."""
    given = {"wait_s": 0.0, "deadline_s": 0.5, "step": 5, "meeting": 9, "hosts": world_size, **said}
    hosts = [await seat(switch, rank, world_size, 1, **given) for rank in ranks]
    heard = await met(*hosts)
    for one, rank in zip(heard, ranks, strict=True):
        await switch.join(one.rank, len(ranks), job="a", instance=f"host {rank}")
    await switch.has(*range(len(ranks)))
    switch.plane.report._made_at = float("-inf")
    return switch.plane.report.document()["recoveries"]


@scenario()
async def test_a_switch_that_was_lost_is_named(switch):
    (told,) = await recovered(switch, 0, 1, 2, interruption=LOST)
    assert (told["kind"], told["ranks"]) == ("SwitchLostError", ())
    assert told["culprit"] == "the switch at 10.0.0.9:7171, as hosts say"
    assert (told["why"], told["epoch_before"]) == (LOST.text, None)
    assert told["epoch"] is not None
    assert 0.5 <= told["stood_s"] < 20.0
    assert switch.plane.report.document()["recovered"] == {}  # which has only what a switch saw itself


@scenario()
async def test_so_are_the_hosts_that_were_lost_with_it(switch):
    (told,) = await recovered(switch, 0, 2, interruption=LOST)
    assert (told["culprit"], told["ranks"]) == ("the switch at 10.0.0.9:7171, and rank 1, as hosts say", (1,))


@scenario()
async def test_another_failure_keeps_its_text(switch):
    text = "Rank 1 (10.0.0.2) closed its connection"
    lost = messages.Interruption("HostLostError", text, "10.0.0.9:7171", 0.0)
    (told,) = await recovered(switch, 0, 2, interruption=lost)
    assert (told["culprit"], told["why"]) == ("HostLostError, as hosts say", text)


@pytest.mark.parametrize("switches", ["10.0.0.9:1\n2026-11-29 forged", "\x1b[2J:1", "", "x:1 and ", "here"])
def test_what_is_no_address_isnt_shown_as_one(switches):
    @scenario()
    async def forge(switch):
        (told,) = await recovered(switch, 0, world_size=1, interruption=structs.replace(LOST, switches=switches))
        assert told["culprit"] == "a switch, as hosts say"

    forge()


@scenario()
async def test_several_switches_are_named(switch):
    lost = structs.replace(LOST, switches="10.0.0.9:7171 and [fd00::9]:7171")
    (told,) = await recovered(switch, 0, world_size=1, interruption=lost)
    assert told["culprit"] == "the switch at 10.0.0.9:7171 and [fd00::9]:7171, as hosts say"


def told_by(*ago_s, ran_until=float("-inf")):
    """Returns the interruption by what hosts say at 1000.0: each another time."""
    said = [meet(rank, 3, interruption=structs.replace(LOST, ago_s=each)) for rank, each in enumerate(ago_s)]
    return interruption_of([SimpleNamespace(since=1000.0, asked=each) for each in said], ran_until)


def test_one_of_many_hosts_makes_up_no_time():
    assert told_by(3000.0, 4.0, 5.0).at == 995.0
    assert told_by(0.0, 4.0, 5.0).at == 996.0
    assert told_by(3000.0, 4.0).at == 996.0


@scenario()
async def test_a_job_that_ran_here_wasnt_interrupted_before(switch):
    hosts, _ = await switch.job(world_size=1)
    job, began = switch.plane.jobs.of("a"), switch.plane.outside.now()
    hosts[0].writer.close()
    await switch.has()
    assert began <= job.ran_until <= switch.plane.outside.now()
    assert told_by(3000.0, ran_until=990.0).since == 990.0
    (told,) = await recovered(switch, 0, world_size=1, interruption=structs.replace(LOST, ago_s=3000.0))
    assert (told["kind"], told["stood_s"] < 30.0) == ("HostLostError", True)  # which the switch saw itself


@scenario()
async def test_hosts_that_say_nothing_have_lost_nothing(switch):
    assert await recovered(switch, 0, 1, 2) == []


@scenario()
async def test_what_a_switch_saw_itself_counts_more(switch):
    hosts = [await seat(switch, rank, 3, 1) for rank in range(3)]
    (first, *_) = await met(*hosts)
    for rank in range(3):
        await switch.join(rank, 3, job="a", instance=f"host {rank}", host_name=f"node{rank}")
    await switch.has(0, 1, 2)
    epoch = switch.plane.jobs.of("a").epoch
    switch.plane.jobs.lose(epoch, epoch.member_of(2), "was silent for 30 s")
    hosts[2].writer.close()
    lost = messages.Interruption("HostLostError", "what hosts heard", "10.0.0.9:7171", 0.0)
    for rank in (0, 1):
        given = {"wait_s": 0.0, "step": 5, "meeting": first.meeting, "hosts": 2, "interruption": lost}
        hosts[rank].send(meet(rank, 3, 1, **given))
    await met(*hosts[:2])
    (told,) = switch.plane.jobs.chronicle.recoveries.last(9)
    assert told.interruption.culprit == "rank 2 (node2, 127.0.0.1)"
