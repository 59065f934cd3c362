"""A switch tells its status to whoever asks, and of a job that has a key only to its owners."""

import asyncio

from jax_passing.protocol import alike, sentences
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.overview import overview
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.status import document as status_document
from support.switch.control import scenario, until
from support.switch.control_trees import in_tree, job
from support.switch.seats import seat

COUNTS = JobCounts(
    chunks=100,
    lanes=36_000,
    waiting=2,
    oldest=WaitingChunk(slot=3, version=0, sequence=99, bitmap=0b01, waited_us=2_500_000),
    workers=(WorkerCounts(100, 1, 20, 1000, 50_000), WorkerCounts(100, 4, 80, 3_000_000, 2_550_000)),
)


async def asked(switch):
    asker = await switch.connect()
    asker.send(messages.StatusQuery(messages.PROTOCOL_VERSION))
    status = await asker.receive()
    assert isinstance(status, messages.Status), status
    assert await asker.receive() is None
    return status.document


@scenario()
async def test_anybody_hears_of_a_running_job(switch):
    switch.data_plane.counted[1] = COUNTS
    await switch.job(link_gbit=10.0, host_name="node", alike={alike.HOSTS_KEY: "digest"})
    document = await asked(switch)
    (told,) = document["jobs"]
    assert (told["job"], told["state"], told["world_size"], told["slots"]) == ("a", "running", 2, 256)
    assert told["confidential"]
    assert (told["chunks"], told["resends"], told["chunks_waiting"], told["absent"]) == (100, 5, 2, [])
    assert told["line_rate_share"] == told["goodput_gbit"] / 10.0 > 0
    assert told["oldest"]["missing"] == [1]
    assert (told["oldest"]["waits_for"], told["oldest"]["waited_s"]) == ("rank 1", 2.5)
    first, last = told["members"]
    assert (first["ranks"], first["address"], first["port"]) == ([0], "127.0.0.1", 1000)
    assert first["hosts"] == [{"rank": 0, "address": "127.0.0.1", "name": "node"}]
    assert (last["last_share"], last["waited_s"], last["resends"], last["silent_s"]) == (0.8, 3.0, 4, 2.55)
    about = document["switch"]
    assert (about["slots"], about["slots_used"], about["jobs"], about["has_key"]) == (1024, 256, 1, False)
    assert document["packets"] == {"added": 7}
    assert document["counts"]["epochs_started"] == 1


@scenario()
async def test_what_a_data_plane_cant_count_is_unknown(switch):
    await switch.job()
    (told,) = (await asked(switch))["jobs"]
    assert told["goodput_gbit"] is told["resends"] is told["chunks_waiting"] is told["oldest"] is None
    assert told["members"][0]["last_share"] is told["members"][0]["silent_s"] is None


@scenario()
async def test_a_job_that_forms_says_whom_it_awaits(switch):
    await switch.join(1, 3)
    await switch.has(1)
    (told,) = (await asked(switch))["jobs"]
    assert (told["state"], told["absent"], told["slots"]) == ("forming", [0, 2], 0)
    assert "Ranks 0, 2 of job 'a' (world size 3) didn't join so far" in told["awaits"]


@scenario()
async def test_refusals_and_ends_are_remembered(switch):
    other = await switch.join(5, 2)
    assert "below the world size" in await other.refusal()
    hosts, _ = await switch.job()
    hosts[0].writer.close()
    await hosts[1].receive()
    document = await asked(switch)
    (refusal,) = document["refusals"]
    assert (refusal["kind"], refusal["job"]) == ("JoinError", "a")
    assert "below the world size" in refusal["why"]
    (end,) = document["ended"]
    assert (end["job"], end["epoch"]) == ("a", 1)
    assert "Rank 0 closed its connection" in end["why"]
    assert 0 <= end["ago_s"] < 30


@scenario()
async def test_a_host_is_told_of_its_own_job(switch):
    await switch.job(job="b")
    hosts, _ = await switch.job()
    hosts[0].send(messages.StatusQuery(messages.PROTOCOL_VERSION))
    document = (await hosts[0].receive()).document
    assert [told["job"] for told in document["jobs"]] == ["a"]
    assert document["packets"] is None


@scenario()
async def test_those_who_ask_often_get_the_same(switch):
    calls = []
    stats = switch.data_plane.stats
    switch.data_plane.stats = lambda: calls.append(1) or stats()
    for _ in range(5):
        await asked(switch)
    assert len(calls) == 1


@scenario(switch_key=b"k" * 32)
async def test_a_switch_with_a_key_tells_nothing_in_the_clear(switch):
    reader, writer = await asyncio.open_connection(*switch.address)
    writer.write(messages.encode(messages.StatusQuery(messages.PROTOCOL_VERSION)))
    assert isinstance(messages.decode_from_switch(await reader.readline()), messages.Hello)
    refused = messages.decode_from_switch(await reader.readline())
    assert isinstance(refused, messages.Refused)
    assert "tells its status to those who have its key, or a job's" in refused.message
    assert await reader.read() == b""
    writer.close()


@scenario()
async def test_hosts_that_wait_to_meet_are_told_of(switch):
    await seat(switch, 1, 3, 2)
    (meeting,) = (await asked(switch))["meetings"]
    assert (meeting["job"], [one["rank"] for one in meeting["waiting"]]) == ("a", [1])
    assert "it needs 2 hosts" in meeting["why"]


def test_no_more_meetings_are_told_of_than_somebody_looks_at(monkeypatch):
    monkeypatch.setattr(status_document, "MEETINGS_MAX", 2)
    monkeypatch.setattr(status_document, "WAITING_MAX", 3)

    @scenario()
    async def crowd(switch):
        for rank in range(5):
            await seat(switch, rank, 8, 8)
        await until(lambda: "a" in switch.plane.meetings.by_job)
        for number in range(4):
            await seat(switch, 0, 8, 8, job=f"job {number}")
        await until(lambda: sum(len(one.waiting) for one in switch.plane.meetings.by_job.values()) == 9)
        told = await asked(switch)
        first, second = told["meetings"]
        assert (first["job"], len(first["waiting"]), first["more"]) == ("a", 3, 2)
        assert (len(second["waiting"]), second["more"]) == (1, 0)
        assert ", and 2 more. Here are" in sentences.of_meeting(first)
        assert sentences.more_meetings(overview({"s:1": told})) == ["And in 3 more jobs hosts wait to meet."]
        assert status_document.of_job(told, "a")["more_meetings"] == 0

    crowd()


@in_tree(racks=2)
async def test_a_racks_switch_is_a_member_of_its_parents(tree, root, rack, other):
    root.data_plane.counted[1] = COUNTS
    await job(rack, other)
    (told,) = (await asked(root))["jobs"]
    assert [(member["switch"], member["ranks"]) for member in told["members"]] == [
        (rack.name, [0, 1]),
        (other.name, [2, 3]),
    ]
    assert [host["rank"] for host in told["members"][1]["hosts"]] == [2, 3]
    assert (told["oldest"]["waits_for"], told["oldest"]["missing"]) == ("ranks 2, 3", [2, 3])
    rack.data_plane.counted[1] = COUNTS
    below = await asked(rack)
    assert below["switch"]["parent"] == below["jobs"][0]["parent"] == root.name


@scenario()
async def test_records_are_wanted_now_and_then(switch):
    hosts, _ = await switch.job()
    switch.plane.jobs.chronicle.refused("a stranger", "it may not")
    for _ in range(2):  # the second time too soon for hosts
        asker = await switch.connect()
        asker.send(messages.StatusQuery(messages.PROTOCOL_VERSION, records=True))
        events = (await asker.receive()).document["events"]
        assert [event["kind"] for event in events] == ["joined", "joined", "started", "refused"]
        assert events[0]["address"] == "127.0.0.1"
        assert all(event["ago_s"] >= 0 for event in events)
    for host in hosts:
        assert await host.receive() == messages.WriteRecord()
        host.send(messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()


@scenario()
async def test_the_events_are_made_now_and_then(switch):
    await switch.job()
    query = messages.StatusQuery(messages.PROTOCOL_VERSION, records=True)
    first, *others = [switch.plane.report.answer(query, None).document["events"] for _ in range(5)]
    assert all(other is first for other in others)


@scenario()
async def test_refusals_of_strangers_leave_what_became_of_jobs(switch):
    await switch.job()
    for _ in range(5000):
        switch.plane.jobs.chronicle.refused("a stranger", "it may not")
    query = messages.StatusQuery(messages.PROTOCOL_VERSION, records=True)
    (line,) = messages.encode(switch.plane.report.answer(query, None)).splitlines()
    kinds = [event["kind"] for event in messages.decode_from_switch(line).document["events"]]
    assert kinds[:3] == ["joined", "joined", "started"]
    assert set(kinds[3:]) == {"refused"}


@scenario()
async def test_one_jobs_asking_leaves_the_hosts_of_others_to_be_asked(switch):
    hosts = {name: (await switch.job(job=name))[0] for name in "ab"}
    query = messages.StatusQuery(messages.PROTOCOL_VERSION, records=True)
    asked = [switch.plane.report.answer(query, name).document["hosts_asked"] for name in ("a", "a", "b", None)]
    assert asked == [True, False, True, False]
    for several in hosts.values():
        for host in several:
            assert await host.receive() == messages.WriteRecord()
            host.send(messages.Heartbeat())
            assert await host.receive() == messages.Heartbeat()


@scenario()
async def test_a_job_that_stands_still_is_noted_once(switch):
    await switch.job()
    (epoch,) = switch.plane.jobs.epochs()
    chronicle = switch.plane.jobs.chronicle
    for waited_us in (10_000, 2_000_000, 7_000_000):
        chronicle.waits(epoch, WaitingChunk(slot=3, version=0, sequence=99, bitmap=0b01, waited_us=waited_us))
    event = chronicle.journal.events[-1]
    assert (event.kind, event.text, event.facts["missing"]) == ("stall", "waited 2.0 s for rank 1", [1])
    assert [each.kind for each in chronicle.journal.events].count("stall") == 1


@in_tree(racks=2)
async def test_hosts_of_racks_are_asked_for_their_records(tree, root, rack, other):
    hosts, *_ = await job(rack, other)
    asker = await root.connect()
    asker.send(messages.StatusQuery(messages.PROTOCOL_VERSION, records=True))
    assert isinstance(await asker.receive(), messages.Status)
    for host in hosts:
        assert await host.receive() == messages.WriteRecord()
