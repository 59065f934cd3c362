"""Ranks that have waited for the others in vain hear why."""

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs import waits
from jax_passing.switch.jobs.admission import Abilities, rank_of_host
from jax_passing.switch.jobs.epochs import Member
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.jobs.waits import end_waits, whom_it_awaits
from support.switch.control import RecordingDataPlane, StillOutside, scenario
from support.switch.control_trees import in_tree, rack_says


def test_missing_ranks_are_named_at_the_join_deadline(caplog):
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @scenario()
    async def run(switch):
        hosts = [await switch.join(rank, 4, join_deadline_s=2.0) for rank in (0, 2)]
        for host in hosts:
            message = await host.refusal()
            assert "didn't join" in message
            assert message.startswith("Ranks 1, 3 of job 'a' (world size 4) didn't join")
        assert switch.plane.stats()["joins_refused"] == 2
        assert isinstance(await (await switch.join(0, 1)).receive(), messages.Welcome)  # nothing is left of them

    run()
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("refused rank")
    assert "didn't join within" in told[0]


def test_a_rack_that_never_prepares_is_refused_by_name_and_holds_no_slots(monkeypatch):
    monkeypatch.setattr(waits, "PREPARE_S", 0.3)

    @in_tree(racks=0)
    async def run(tree, root):
        host = await root.join(0, 2)
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242), rack_says(1))
        assert isinstance(messages.decode_from_parent(await rack.reader.readline()), messages.Prepare)
        assert "slots" in root.plane.held()
        refused = await rack.receive()
        assert (refused.kind, refused.rank) == ("JoinError", 1)
        assert "No answer from the switch at far:1 (rank 1)" in refused.message
        assert "didn't start within 0.3 s" in refused.message
        assert "slots" not in root.plane.held()
        await root.has(0)  # it waits for another one
        host.writer.close()

    run()


@in_tree(racks=1)
async def test_who_asks_while_it_waits_hears_for_whom(tree, root, rack):
    hosts = [await rack.join(0, 3), await root.join(1, 3)]
    await root.has(0, 1)
    for host in hosts:
        host.send(messages.Query())
    below, above = [(await host.receive()).trouble for host in hosts]
    assert below.startswith("Rank 0 of job 'a' (world size 3) came to this switch.")
    assert f"the switch at {root.name}, waits for the others" in below
    assert above.startswith("Rank 2 of job 'a' (world size 3) didn't join so far. Are those hosts running")
    assert below.endswith("Here: rank 0 (127.0.0.1).")
    assert above.endswith("Here: rank 0 (127.0.0.1), rank 1 (127.0.0.1).")


class _Listening:
    """A connection to somebody who remembers what he hears."""

    host, name, own_host, own_name, link_gbit = "h", "h:1", "s", "s:1", None

    def __init__(self):
        self.heard = []

    def send(self, message):
        self.heard.append(message)
        return True

    def close(self): ...


def _waiting(jobs, ranks, world_size):
    """The epoch of ranks that wait equally long, a second, at their switch; and what each hears."""
    connections = [_Listening() for _ in ranks]
    for rank, connection in zip(ranks, connections, strict=True):
        host = messages.Join(messages.PROTOCOL_VERSION, "a", rank, world_size, ("y",), 1, f"x{rank}", 1.0)
        member = Member(connection, f"x{rank}", ("h", 1), 0.0, 0.0, switches=("y",))
        jobs.admit("a", rank_of_host(host, "h", Abilities("y", 256, 360, False, False, None)), member)
    (epoch,) = jobs.epochs()
    return epoch, connections


def test_all_who_wait_equally_long_hear_of_the_same_missing_ranks(caplog):
    caplog.set_level("WARNING", logger="jax_passing.switch")
    outside = StillOutside()
    jobs = JobTable(RecordingDataPlane(), outside, lease_s=1)
    epoch, connections = _waiting(jobs, range(5), 6)
    end_waits(jobs, epoch, outside.now() + 1.0)
    for rank, connection in enumerate(connections):
        (refused,) = connection.heard
        waited = f"within the 1.0 s that rank {rank} waited"
        assert refused.message.startswith(f"Rank 5 of job 'a' (world size 6) didn't join {waited}.")
    assert not jobs.epochs()
    (line,) = caplog.records  # for all of them
    assert line.getMessage().startswith("refused ranks 0 to 4 of job 'a', epoch 1: Rank 5")


def test_of_many_that_are_here_some_are_shown_with_their_addresses():
    epoch, _ = _waiting(JobTable(RecordingDataPlane(), StillOutside(), lease_s=1), range(1, 40), 41)
    told = whom_it_awaits(epoch)
    assert told.startswith("Ranks 0, 40 of job 'a' (world size 41) didn't join so far.")
    assert told.endswith(", rank 16 (h), 23 more.")


def _host(rank, join_deadline_s):
    host = messages.Join(messages.PROTOCOL_VERSION, "a", rank, 4, ("y",), 1, f"x{rank}", join_deadline_s)
    return rank_of_host(host, "h", Abilities("y", 256, 360, False, False, None))


def test_the_last_to_give_up_blames_the_one_that_never_came():
    outside = StillOutside()
    jobs = JobTable(RecordingDataPlane(), outside, lease_s=1)
    connections = [_Listening() for _ in range(3)]
    for rank, connection in enumerate(connections):
        jobs.admit("a", _host(rank, 1.0 + rank), Member(connection, f"x{rank}", ("h", 1), 0.0, 0.0, switches=("y",)))
    (epoch,) = jobs.epochs()
    for waited in (1.0, 2.0, 3.0):
        end_waits(jobs, epoch, outside.now() + waited)
    told = [connection.heard[0].message for connection in connections]
    assert all(text.startswith("Rank 3 of job 'a' (world size 4) didn't join within") for text in told)
    gone = ["Are those hosts", "Rank 0 came, and went again.", "Ranks 0, 1 came, and went again."]
    assert [text.partition(" waited. ")[2].startswith(more) for text, more in zip(told, gone, strict=True)] == [
        True
    ] * 3


def test_hosts_that_were_never_here_at_once():
    jobs = JobTable(RecordingDataPlane(), StillOutside(), lease_s=1)
    members = [Member(_Listening(), f"x{rank}", ("h", 1), 0.0, 0.0, switches=("y",)) for rank in range(4)]
    for rank in (0, 1, 2):
        jobs.admit("a", _host(rank, 1.0), members[rank])
    (epoch,) = jobs.epochs()
    for rank in (0, 1):
        jobs.gone(epoch, members[rank], rank, "disconnected")
    jobs.admit("a", _host(3, 1.0), members[3])
    all_came = "All hosts of job 'a' (world size 4) came, but not at once so far: {} went again."
    assert whom_it_awaits(epoch).startswith(all_came.format("ranks 0, 1"))
    jobs.admit("a", _host(1, 1.0), members[1])
    assert whom_it_awaits(epoch).startswith(all_came.format("rank 0"))


def test_hosts_facts_are_compared_once_for_all_who_wait(monkeypatch):
    compared = []
    monkeypatch.setattr(waits, "differences", lambda epoch: compared.append(epoch) or "They differ.")
    outside = StillOutside()
    jobs = JobTable(RecordingDataPlane(), outside, lease_s=1)
    epoch, connections = _waiting(jobs, range(5), 6)
    end_waits(jobs, epoch, outside.now() + 0.5)
    assert not compared
    end_waits(jobs, epoch, outside.now() + 1.0)
    assert compared == [epoch]
    assert all("Besides: They differ." in connection.heard[0].message for connection in connections)


def test_what_others_say_never_makes_a_text_too_long_to_be_read():
    outside = StillOutside()
    jobs = JobTable(RecordingDataPlane(), outside, lease_s=1)
    epoch, (connection,) = _waiting(jobs, [0], 2)
    jobs.refused("a", "x" * messages.TEXT_MAX)
    end_waits(jobs, epoch, outside.now() + 1.0)
    epoch, (other,) = _waiting(jobs, [0], 2)
    jobs.refuse_all(epoch, "x" * (messages.TEXT_MAX + 1))
    for (refused,) in (connection.heard, other.heard):
        assert messages.decode_from_switch(messages.encode(refused)) == refused
