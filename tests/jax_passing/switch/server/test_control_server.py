"""The control plane in its event loop: those who don't read, those who say much, the end."""

import asyncio
import contextlib
import errno
import gc
import socket
import struct
import weakref

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import stream
from jax_passing.protocol.keys import job_key
from jax_passing.protocol.secure_channel import Channel
from jax_passing.switch.server import control_server, member_conversation
from support.switch.control import Switch, scenario, until


@scenario()
async def test_answers_leave_at_once(switch):
    """Though the listener doesn't know the number of its protocol. A sum right after a meeting took 44 ms else."""
    await switch.connect()
    (connected,) = switch.server.streams
    accepted = connected._transport.get_extra_info("socket")
    assert accepted.proto == 0
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@scenario()
async def test_a_host_that_asks_and_doesnt_read_is_lost(switch):
    switch.data_plane.stats = lambda: {"x" * 60_000: 1}
    hosts, _ = await switch.job(2)
    hosts[0].send(*[messages.CountersQuery()] * 1000)
    failed = await hosts[1].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))
    assert "asks and doesn't read the answers" in failed.message
    await until(lambda: not switch.server.streams)


@scenario()
async def test_a_fault_of_ours_costs_no_place_among_the_connections(switch):
    def raises(*_):
        raise RuntimeError("a fault")

    hosts, _ = await switch.job(2)
    switch.plane.dispatcher.dispatch = raises
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    hosts[1].send(messages.Heartbeat())
    assert (await hosts[0].receive()).ranks == (1,)
    await until(lambda: not switch.server.streams)


@pytest.mark.parametrize("end", ["inside a line", "too long a line", "reset"])
def test_what_was_read_is_freed_with_its_connection(monkeypatch, end):
    """At once, not when the garbage collector comes."""
    monkeypatch.setattr(stream, "FLUSH_S", 0.01)

    @scenario()
    async def run(switch):
        stranger = await switch.connect()
        (stream,) = map(weakref.ref, switch.server.streams)
        lines = weakref.ref(stream()._lines)
        stranger.send(b"x" * (messages.RELAY_LINE_BYTES_MAX + 1 if end == "too long a line" else 1000))
        if end == "reset":
            nothing_waits = struct.pack("ii", 1, 0)
            stranger.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, nothing_waits)
        if end != "too long a line":
            stranger.writer.close()
        await until(lambda: not switch.server.streams)
        await asyncio.sleep(0.05)  # its timers refer to it
        assert (stream(), lines()) == (None, None)

    gc.disable()
    try:
        run()
    finally:
        gc.enable()


@scenario()
async def test_a_host_that_says_much_lets_others_speak(switch):
    hosts, _ = await switch.job(1)
    lines, lines_at_once = 0, []
    dispatch = switch.plane.dispatcher.dispatch

    def count(*args):
        nonlocal lines
        lines += 1
        dispatch(*args)

    switch.plane.dispatcher.dispatch = count
    hosts[0].send(messages.encode(messages.Heartbeat()) * 5000)
    while lines < 5000:
        before = lines
        await asyncio.sleep(0)
        lines_at_once.append(lines - before)
    assert max(lines_at_once) < 10


async def relay_until_rank_1_is_lost(hosts):
    """Relays from rank 0; rank 2 reads, and rank 1 does not."""
    for _ in range(64):
        hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
        await hosts[0].writer.drain()
        relayed = await hosts[2].receive()
        if isinstance(relayed, messages.Failed):
            break
    assert (relayed.kind, relayed.ranks) == ("HostLostError", (1,))
    assert "stopped reading" in relayed.message


@scenario()
async def test_a_host_that_doesnt_read_is_lost_not_waited_for(switch):
    hosts, _ = await switch.job(3)
    await relay_until_rank_1_is_lost(hosts)


async def begin_handshake(switch, address="127.0.0.1"):
    """Sends half of what begins a handshake."""
    reader, writer = await asyncio.open_connection(*switch.address, local_addr=(address, 0))
    writer.write(Channel.caller("a", b"?" * 32).take_outgoing()[:100])
    await until(lambda: any(stream._channel for stream in switch.server.streams))
    return reader, writer


@pytest.mark.parametrize("end", ["silence", "hanging up", "no TLS"])
def test_a_handshake_that_fails_leaves_nothing(monkeypatch, end):
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 0.1 if end == "silence" else 30.0)

    @scenario(switch_key=b"k" * 32)
    async def run(switch):
        _, writer = await begin_handshake(switch)
        if end == "no TLS":
            writer.write(b"x" * 1000)
        elif end == "hanging up":
            writer.close()
        await until(lambda: not switch.server.streams)
        assert not switch.plane.quota.connections
        writer.close()

    run()


@scenario(switch_key=b"k" * 32, connections_per_address=1)
async def test_nothing_is_said_in_the_clear_amid_a_handshake(switch):
    """Whoever reads it there can't know whose word it is."""
    reader, writer = await begin_handshake(switch)
    other, its_writer = await asyncio.open_connection(*switch.address)
    await other.readline()
    assert await reader.read() == b""
    assert switch.plane.stats()["connections_displaced"] == 1
    for one in (writer, its_writer):
        one.close()


@scenario(switch_key=b"k" * 32)
async def test_with_a_key_nothing_is_said_to_whoever_may_begin_a_handshake(switch):
    reader, writer = await asyncio.open_connection(*switch.address)
    await asyncio.sleep(member_conversation.PLAIN_GREETING_S / 5)
    writer.write(Channel.caller("a", job_key(b"k" * 32, "a")).take_outgoing())
    assert (await reader.read(1))[0] == 0x16
    writer.close()


@scenario()
async def test_a_switch_without_a_key_greets_whoever_speaks_tls_and_hangs_up(switch):
    reader, writer = await asyncio.open_connection(*switch.address)
    writer.write(Channel.caller("a", b"?" * 32).take_outgoing())
    greeting, end = (await reader.read()).split(b"\n")
    assert (messages.decode_from_switch(greeting).secured, end) == (False, b"")
    writer.close()


def test_shutting_down_doesnt_wait_for_a_handshake():
    async def run():
        async with Switch(switch_key=b"k" * 32) as switch:
            _, writer = await begin_handshake(switch)
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 4))


def test_what_all_have_unread_is_bounded(monkeypatch):
    """Whoever has most goes, though it has less than one alone may have."""
    monkeypatch.setattr(control_server, "UNSENT_TOTAL_BYTES_MAX", 3 * messages.RELAY_BYTES_MAX)

    @scenario()
    async def run(switch):
        quiet, _ = await switch.job(job="quiet")
        hosts, _ = await switch.job(3)
        await relay_until_rank_1_is_lost(hosts)
        assert sum(stream.unsent_bytes for stream in switch.server.streams) <= 3 * messages.RELAY_BYTES_MAX
        quiet[0].send(messages.Heartbeat())
        assert await quiet[0].receive() == messages.Heartbeat()

    run()


def test_running_out_of_descriptors_is_a_line_and_a_count(caplog):
    @scenario()
    async def run(switch):
        loop = asyncio.get_running_loop()
        error = OSError(errno.EMFILE, "Too many open files")
        loop.call_exception_handler(
            {"message": "socket.accept() out of system resource", "exception": error, "socket": 1}
        )
        (record,) = [record for record in caplog.records if "accepted" in record.message]
        assert record.getMessage() == "no connection can be accepted: [Errno 24] Too many open files"
        assert record.exc_info is None
        assert switch.server.stats()["accepts_failed"] == 1

    caplog.set_level("WARNING", logger="jax_passing.switch")
    run()


def test_shutting_down_doesnt_wait_for_who_doesnt_read():
    async def run():
        async with Switch() as switch:
            hosts, _ = await switch.job()
            for _ in range(7):
                hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
                await hosts[0].writer.drain()
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(run(), 30))


@scenario(connections_per_address=4)
async def test_connections_count_until_all_that_they_were_told_is_read(switch):
    switch.data_plane.stats = lambda: {"x" * 5_000_000: 1}  # more than the kernel takes
    query = messages.encode(messages.StatusQuery(messages.PROTOCOL_VERSION))
    several = []
    for _ in range(12):
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_connect(caller, switch.address)
        several.append(caller)
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(caller, query)
        await asyncio.sleep(0.05)
    assert len(switch.server.streams) <= 4
    assert switch.plane.quota.connections == len(switch.server.streams)
    for caller in several:
        caller.close()
    await until(lambda: not switch.plane.quota.connections)
