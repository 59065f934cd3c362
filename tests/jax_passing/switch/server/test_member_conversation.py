"""The conversation with a host or a rack's switch: its first message, silence, input that nobody of ours sends."""

import asyncio
import contextlib

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.server import life, member_conversation
from support.switch.control import join_of_version, scenario, until
from support.switch.control_trees import in_tree, rack_says
from support.switch.seats import meet, met, seat


@scenario()
async def test_a_join_of_our_version_with_unknown_fields_is_malformed(switch):
    host = await switch.connect()
    host.send(join_of_version(messages.PROTOCOL_VERSION, switch, 0, surprise=1))
    assert await host.receive() is None
    assert switch.plane.stats()["messages_malformed"] == 1


@pytest.mark.parametrize(
    "more",
    [{"color": "red"}, {"udp_port": None}, {"switches": ["x"] * 100}, {"world_size": {"number": 1}}],
    ids=["more", "less", "too many", "otherwise"],
)
def test_a_first_message_of_another_version_is_named_whatever_else_it_says(caplog, more):
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @scenario()
    async def run(switch):
        version = messages.PROTOCOL_VERSION + 1
        host = await switch.connect()
        host.send(join_of_version(version, switch, 0, **{"world_size": 1, **more}))
        refusal = await host.refusal()
        assert f"speaks protocol version {messages.PROTOCOL_VERSION}, " in refusal
        assert f" version {version}. Upgrade jax_passing on the switch" in refusal
        assert refusal in caplog.text
        assert switch.plane.stats()["joins_refused"] == 1

    run()


BAD_LINES = [
    b"\n",
    b"GET / HTTP/1.1\r\n",
    b"{}\n",
    b"[]\n",
    b'{"type":"join"}\n',
    b'{"type":"heartbeat"}\n',
    b'{"type":"leave","more":1}\n',
    b'{"type":"relay","payload":"!"}\n',
    b'{"type":"query","slot":-1}\n',
    b'{"type":"query","slot":999999999999999999999999}\n',
    b'{"type":"fail","kind":"KeyboardInterrupt","message":""}\n',
    b'{"type":"fail","kind":"HostLostError","message":"","ranks":[63]}\n',
    b'{"type":"welcome"}\n',
    b"\xff\xfe\n",
    b'{"type":"\xff"}\n',
    b'{"a":' + b"[" * 30_000 + b"\n",
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
    [
        (b"", "its first message hasn't come within 0.05 s"),
        (b"no end", "the connection ended inside a line"),
        (b"{}\n", "Object"),
    ],
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


@pytest.mark.parametrize("several", [(), (rack_says(0), messages.RankGone(0))], ids=["never", "no longer"])
def test_a_rack_that_has_no_ranks_is_given_up(monkeypatch, several):
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 0.2)

    @in_tree(racks=0)
    async def run(tree, root):
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242), *several)
        with contextlib.suppress(ConnectionError):
            assert await rack.receive() is None
        await until(lambda: not root.server.streams)

    run()


@scenario(lease_s=0.4)
async def test_a_rank_that_is_silent_while_it_waits_makes_room_for_another(switch):
    """Its node has died: its connection never ends by itself."""
    dead = await switch.join(0)
    assert "was silent for 0.4 s while it waited to join" in await dead.refusal()
    assert not switch.plane.jobs.epochs()
    await switch.job()


@scenario()
async def test_a_rank_has_the_lease_that_its_session_wants(switch):
    hosts, _ = await switch.job(2, lease_s=0.4)
    heard = messages.Heartbeat()
    while heard == messages.Heartbeat():
        hosts[0].send(heard)
        heard = await hosts[0].receive()
        await asyncio.sleep(0.05)
    assert (heard.kind, heard.ranks) == ("HostLostError", (1,))
    assert "was silent for 0.4 s" in heard.message


async def beats(lifeline, times, period_s):
    for _ in range(times):
        lifeline.send(b"\n")
        await asyncio.sleep(period_s)


def test_a_lifeline_says_that_a_host_lives_for_a_while(monkeypatch):
    monkeypatch.setattr(life, "INTERPRETER_HELD_S", 1.0)

    @scenario(lease_s=0.4)
    async def run(switch):
        host, lifeline = await switch.connect(), await switch.connect()
        lifeline.send(messages.Lifeline(host.token))  # before there is a seat
        host.send(meet(0, 3, 3))
        began = asyncio.get_running_loop().time()
        beating = asyncio.create_task(beats(lifeline, 60, 0.05))
        assert await host.receive() is None  # it has lost its seat
        assert asyncio.get_running_loop().time() - began > 1.0
        assert await lifeline.receive() is None  # it ends with the host's own connection
        beating.cancel()
        assert (switch.plane.lives, switch.plane.quota.connections) == ({}, 0)

    run()


def test_a_token_is_good_for_one_lifeline_of_a_host_that_has_joined(monkeypatch):
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 0.5)

    @scenario()
    async def run(switch):
        host, first, second, third = [await switch.connect() for _ in range(4)]
        host.send(meet(0, 3, 3))
        first.send(messages.Lifeline(host.token))
        await until(lambda: switch.plane.quota.connections == 3)  # the first counts as the host's
        second.send(messages.Lifeline(host.token))
        third.send(messages.Lifeline(second.token), b"\n\n")  # a lifeline has none
        second.send(b"\n")
        for one in (second, third):
            assert await one.receive() is None
        host.writer.close()
        assert await first.receive() is None
        await until(lambda: switch.plane.quota.connections == 0)

    run()


@scenario(lease_s=0.4)
async def test_a_host_that_is_silent_while_it_meets_others_loses_its_seat(switch):
    dead = await seat(switch, 0, 3, 3)
    alive = await seat(switch, 1, 3, 3)
    until_s = asyncio.get_running_loop().time() + 1.0
    while asyncio.get_running_loop().time() < until_s:
        alive.send(messages.Heartbeat())
        assert await alive.receive() == messages.Heartbeat()
        await asyncio.sleep(0.05)
    assert await dead.receive() is None
    await met(alive, await seat(switch, 0, 3, 3), await seat(switch, 2, 3, 3, instance="third"))


@pytest.mark.parametrize("number", ["evil", "01", "0", "1/shard 2", "-1"])
def test_a_shard_that_there_cant_be_is_refused(number):
    @scenario()
    async def run(switch):
        host = await switch.connect()
        host.send(join_of_version(messages.PROTOCOL_VERSION, switch, 0, job=f"a/shard {number}"))
        assert f"there is no shard '{number}'" in await host.refusal()
        assert switch.plane.report.document(None)["jobs"] == []

    run()
