"""A switch hears from hosts that meet there what they lost elsewhere."""

from jax_passing.protocol import control_messages as messages
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
    assert (told["kind"], told["culprit"], told["ranks"]) == ("SwitchLostError", "the switch at 10.0.0.9:7171", ())
    assert (told["why"], told["epoch_before"]) == (LOST.text, None)
    assert told["epoch"] is not None
    assert 0.5 <= told["stood_s"] < 20.0


@scenario()
async def test_so_are_the_hosts_that_were_lost_with_it(switch):
    (told,) = await recovered(switch, 0, 2, interruption=LOST)
    assert (told["culprit"], told["ranks"]) == ("the switch at 10.0.0.9:7171, and rank 1", (1,))


@scenario()
async def test_another_failure_keeps_its_text(switch):
    text = "Rank 1 (10.0.0.2) closed its connection"
    lost = messages.Interruption("HostLostError", text, "10.0.0.9:7171", 0.0)
    (told,) = await recovered(switch, 0, 2, interruption=lost)
    assert (told["kind"], told["culprit"], told["why"]) == ("HostLostError", "", text)


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
