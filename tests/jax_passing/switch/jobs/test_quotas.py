"""Quotas say who has to go when there are too many connections, and what no address may have alone."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import handshakes
from jax_passing.protocol.secure_channel import Channel
from jax_passing.switch.jobs import quotas
from jax_passing.switch.jobs.quotas import ConnectionQuota
from jax_passing.switch.server import member_conversation
from jax_passing.switch.server.control_plane import ControlPlane
from jax_passing.switch.server.settings import SwitchSettings
from support.switch.control import Host, scenario, until


class Guest:
    def __init__(self, quota, address):
        self.quota, self.address, self.why, self.joined = quota, address, "", False

    def enter(self):
        return self.quota.enter(self, self.address)

    def join(self):
        self.joined = True
        self.quota.joined(self, self.address)

    def make_room(self, why):
        self.why = why
        self.leave()

    def leave(self):
        self.quota.leave(self, self.address)


def test_the_oldest_of_an_address_that_hasnt_joined_makes_room():
    quota = ConnectionQuota(100, 3)
    first, second, third, fourth = (Guest(quota, "a") for _ in range(4))
    other = Guest(quota, "b")
    assert not other.enter()
    assert not first.enter()
    first.join()
    for guest in (second, third, fourth):
        assert not guest.enter()
    assert second.why == "a has 3 connections to this switch, as many as one address may (connections_per_address)."
    assert not any(guest.why for guest in (first, third, fourth, other))
    for guest in (third, fourth):
        guest.join()
    last = Guest(quota, "a")
    assert "a has 3 connections" in last.enter()  # all have joined: nobody makes room
    assert quota.counts == {"connections_displaced": 1, "connections_refused": 1}
    third.leave()
    assert not last.enter()


def test_the_address_with_most_that_havent_joined_makes_room_for_others(monkeypatch):
    monkeypatch.setattr(quotas, "UNJOINED_MAX", 6)
    quota = ConnectionQuota(100, 5)
    host = Guest(quota, "host")
    assert not host.enter()
    strangers = [Guest(quota, "stranger") for _ in range(5)]
    for guest in strangers:
        assert not guest.enter()
    late = Guest(quota, "late")
    assert not late.enter()
    assert strangers[0].why == "This switch has 6 that haven't joined a job, as many as it may."
    assert not host.why


def test_nobody_who_has_joined_makes_room():
    quota = ConnectionQuota(3, 2)
    members = [Guest(quota, address) for address in "aab"]
    for member in members:
        assert not member.enter()
        member.join()
    assert Guest(quota, "c").enter() == "This switch has 3 connections, as many as it may."
    members[0].leave()
    assert not Guest(quota, "c").enter()


def test_handshakes_that_come_to_nothing_are_few_a_second():
    quota = ConnectionQuota(100, 64)
    for _ in range(1000):
        assert not quota.begin_handshake("host", 5.0)
        quota.end_handshake("host", 5.0)
    for _ in range(64):  # ranks that begin at once
        assert not quota.begin_handshake("host", 5.0)
    assert quota.begin_handshake("host", 5.0).startswith("64 connections of host haven't shown that they know")
    assert not quota.begin_handshake("other", 5.0)
    began = sum(not quota.begin_handshake("host", 5.0 + tick / 100) for tick in range(1001))
    assert began == 10 * handshakes.HANDSHAKES_PER_S
    assert quota.counts == {"handshakes_refused": 1 + 1001 - began}
    assert not quota.begin_handshake("host", 100.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "join", "leave"])), max_size=60))
def test_no_limit_is_passed_and_nothing_is_left(steps):
    quota = ConnectionQuota(7, 4)
    inside = []
    for address, step in steps:
        ours = [guest for guest in inside if guest.address == address]
        if step == "enter":
            guest = Guest(quota, address)
            unjoined = Counter(one.address for one in inside if not one.joined)
            if not guest.enter():
                inside.append(guest)
            for one in inside:
                assert not one.why or one.address == address or unjoined[one.address] == max(unjoined.values())
            inside = [one for one in inside if not one.why]
        elif ours and step == "join":
            ours[0].join()
        elif ours:
            ours[0].leave()
            inside.remove(ours[0])
        assert len(inside) <= 7
        assert all(count <= 4 for count in Counter(one.address for one in inside).values())
    for guest in inside:
        guest.leave()
    assert quota.connections == 0


# In the switch.


async def _connect_from(switch, address):
    reader, writer = await asyncio.open_connection(*switch.address, local_addr=(address, 0))
    host = Host(reader, writer)
    switch.hosts.append(host)
    assert isinstance(await host.receive(), messages.Hello)
    return host


@scenario(connections_per_address=3)
async def test_a_thousand_connections_keep_no_host_out_and_are_refused_by_name(switch):
    running, _ = await switch.job()
    for number in range(1000):
        stranger = await switch.connect()
        if number % 100 == 99:
            assert len(switch.server.streams) <= 5  # two of hosts, one of a stranger, those that are closing
    late = await switch.connect()
    refused = await stranger.receive()
    assert (refused.kind, await stranger.receive()) == ("JoinError", None)
    assert "127.0.0.1 has 3 connections" in refused.message
    assert switch.plane.stats()["connections_displaced"] == 1000
    running[0].send(messages.Heartbeat())
    assert await running[0].receive() == messages.Heartbeat()
    late.writer.close()

    for host in running:
        host.send(messages.Leave())
    for host in running:
        assert await host.receive() == messages.Bye()
    await until(lambda: not switch.plane.quota.connections)


@scenario(connections_per_address=2)
async def test_who_is_refused_a_connection_hears_why_and_others_come(switch):
    await switch.job()
    stranger = await switch.connect()
    assert "as many as one address may" in await stranger.refusal()
    assert switch.plane.stats()["connections_refused"] == 1
    other = await _connect_from(switch, "127.0.0.2")
    other.send(messages.Join(messages.PROTOCOL_VERSION, "b", 0, 1, (switch.instance,), 9, "x", 5.0))
    assert isinstance(await other.receive(), messages.Welcome)


def test_who_begins_handshakes_and_hangs_up_is_refused_by_name_and_nobody_else(caplog, monkeypatch):
    caplog.set_level("WARNING", logger="jax_passing.switch")
    monkeypatch.setattr(handshakes, "HANDSHAKES_PER_S", 0)  # however long this takes

    @scenario(connections_per_address=3, switch_key=b"k" * 32)
    async def run(switch):
        async def begin(address):
            """Begins a handshake with another key than the job's, and returns what the switch says first."""
            reader, writer = await asyncio.open_connection(*switch.address, local_addr=(address, 0))
            switch.hosts.append(Host(reader, writer))
            writer.write(Channel.caller("a", b"?" * 32).take_outgoing())
            return await reader.read(1)

        for _ in range(3):
            assert await begin("127.0.0.1") == b"\x16"
            switch.hosts[-1].writer.close()
            await until(lambda: not switch.server.streams)
        assert await begin("127.0.0.1") == b"{"
        await switch.hosts[-1].reader.readline()
        refused = await switch.hosts[-1].receive()
        assert "3 connections of 127.0.0.1 haven't shown that they know a job's key" in refused.message
        assert refused.message in caplog.text
        assert await switch.hosts[-1].receive() is None
        assert switch.plane.stats()["handshakes_refused"] == 1
        assert await begin("127.0.0.2") == b"\x16"

    run()


def test_a_refused_connection_is_in_the_log(caplog):
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @scenario(connections_per_address=1)
    async def run(switch):
        await switch.join(0, 2)
        await switch.has(0)
        stranger = await switch.connect()
        await stranger.refusal()
        host, port = stranger.writer.get_extra_info("sockname")
        (record,) = caplog.records
        assert record.getMessage().startswith(f"refused the connection of {host}:{port}: 127.0.0.1 has 1 connections")

    run()


@scenario(slots_per_job=256, slots_per_address=512)
async def test_one_address_gets_no_more_than_its_share_of_the_slots(switch):
    greedy = [await switch.job(1, job=f"greedy {number}") for number in range(2)]
    for number in range(30):
        refused = await (await switch.join(0, 1, job=f"more {number}")).refusal()
        assert "at 127.0.0.1 hold as many slots of the switch" in refused
        assert "slots_per_address" in refused
    other = await _connect_from(switch, "127.0.0.2")
    other.send(messages.Join(messages.PROTOCOL_VERSION, "b", 0, 1, (switch.instance,), 9, "x", 5.0))
    assert isinstance(await other.receive(), messages.Welcome)
    assert switch.plane.stats()["joins_refused"] == 30

    greedy[0][0][0].send(messages.Leave())
    assert await greedy[0][0][0].receive() == messages.Bye()
    await switch.job(1, job="again")


@scenario()
async def test_half_of_the_slots_are_for_others_unless_that_is_room_for_few_jobs(switch):
    for per_job, expected in ((16, 512), (128, 512), (256, 1024)):
        plane = ControlPlane(switch.data_plane, switch.server, SwitchSettings(slots_per_job=per_job))
        plane._watch.stop()
        assert plane.jobs.starts._partition._per_owner == expected


@scenario()
async def test_a_job_whose_ranks_never_come_holds_no_slots(switch):
    for number in range(30):
        await switch.join(0, 2, job=f"waiting {number}")
    await until(lambda: len(switch.plane.jobs.epochs()) == 30)
    for number in range(4):
        await switch.job(job=f"job {number}")  # all of the switch's slots


@pytest.mark.parametrize("state", ["silent", "waiting", "running"])
def test_a_line_that_never_ends_has_little_room(monkeypatch, state):
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 30.0)

    @scenario()
    async def run(switch):
        match state:
            case "silent":
                host = await switch.connect()
            case "waiting":
                host = await switch.join(0, 2)
            case "running":
                host = (await switch.job())[0][1]
        host.send(b"x" * messages.LINE_BYTES_MAX)
        await asyncio.sleep(0.05)
        before = switch.plane.stats().get("messages_malformed", 0)
        host.send(b"x" * 10)
        await until(lambda: switch.plane.stats().get("messages_malformed", 0) > before)

    run()
