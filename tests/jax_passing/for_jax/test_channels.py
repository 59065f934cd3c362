"""Hosts send each other messages by real connections, with and without a key; strangers change nothing."""

import os
import random
import socket
import ssl
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from jax_passing.errors import Failure, JoinError
from jax_passing.for_jax import channels as channels_module
from jax_passing.for_jax.channels import Channels
from jax_passing.for_jax.frames import Frame, Kind
from jax_passing.host.control.loop import Loop
from jax_passing.protocol import handshakes, keys, secure_channel
from support.switch.in_process import until

JOB, KEY = "job", bytes(range(32))
GROUP = SimpleNamespace(id=5, name="the devices of hosts 0 to 2", hosts=(0, 0, 1, 2))
OF_RANK = (0, 2, 3)  # a device of each host
MIB = 1 << 20


class Request:
    def __init__(self):
        self._ended, self.ends = threading.Event(), []

    def done(self, *end):
        self.ends.append(end)
        self._ended.set()

    def wait(self):
        assert self._ended.wait(20), "it never ended"
        assert len(self.ends) == 1
        return self.ends[0]


class Host:
    def __init__(self, rank, key, deadline_s=10.0):
        self.failures = []
        self.loop = Loop()
        self.channels = Channels(self.loop, rank, 3, JOB, key, deadline_s, self.failures.append)
        self.told = self.channels.start("127.0.0.1")
        self.address = keys.unsealed(key, f"channel {rank}", self.told)

    def send(self, own, to, data, tag=0):
        request = Request()
        self.channels.send(GROUP, own, to, tag, memoryview(data), request)
        return request

    def receive(self, own, source, size_bytes, tag=0):
        request, buffer = Request(), bytearray(size_bytes)
        self.channels.receive(GROUP, own, source, tag, memoryview(buffer), request)
        return request, buffer

    def close(self):
        self.channels.close()
        self.loop.close()


@pytest.fixture(params=[None, KEY], ids=["without a key", "with a key"])
def key(request):
    return request.param


@pytest.fixture
def hosts(key):
    three = [Host(rank, key) for rank in range(3)]
    for host in three:
        host.channels.set_peers({rank: each.told for rank, each in enumerate(three)})
    yield three
    for host in three:
        host.close()


def port(host):
    return int(host.address.split()[1])


def token(host):
    return int(host.address.split()[2], 16)


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 65536, 65537, MIB + 3])
def test_all_hosts_send_to_all_at_once(hosts, size_bytes):
    data = {(a, b): random.Random(a * 3 + b).randbytes(size_bytes) for a in OF_RANK for b in OF_RANK}
    received = {(a, b): host.receive(b, a, size_bytes) for b, host in zip(OF_RANK, hosts, strict=True) for a in OF_RANK}
    sent = [hosts[OF_RANK.index(a)].send(a, b, each) for (a, b), each in data.items()]
    assert {request.wait() for request in sent} == {()}
    for ends, (request, buffer) in received.items():
        assert (request.wait(), bytes(buffer)) == ((), data[ends])
    assert [host.failures for host in hosts] == [[]] * 3


def test_a_ring_of_long_messages_in_both_directions(hosts):
    """No host waits with its receive for its send to be over, as XLA doesn't either; but all connections are full."""
    requests, checks = [], []
    for step in (1, 2):
        for rank, host in enumerate(hosts):
            data = bytes([16 * step + rank]) * (32 * MIB)
            to, source = OF_RANK[(rank + step) % 3], (rank - step) % 3
            requests.append(host.send(OF_RANK[rank], to, data, tag=step))
            request, buffer = host.receive(OF_RANK[rank], OF_RANK[source], len(data), tag=step)
            requests.append(request)
            checks.append((buffer, bytes([16 * step + source])))
    assert {request.wait() for request in requests} == {()}
    assert all(buffer.count(byte) == 32 * MIB for buffer, byte in checks)


def test_a_long_message_that_nobody_wants_holds_up_nothing(hosts):
    unwanted = hosts[0].send(0, 2, bytes(8 * MIB), tag=1)
    sent = hosts[0].send(0, 2, bytes(8 * MIB), tag=2)
    request = hosts[1].receive(2, 0, 8 * MIB, tag=2)[0]
    assert request.wait() == sent.wait() == ()
    assert unwanted.ends == []
    assert hosts[1].receive(2, 0, 8 * MIB, tag=1)[0].wait() == unwanted.wait() == ()


def test_devices_of_one_host_need_no_connection(key):
    host = Host(0, key)  # which knows no address of another one
    request, buffer = host.receive(1, 0, MIB)
    assert host.send(0, 1, b"x" * MIB).wait() == request.wait() == ()
    assert buffer == b"x" * MIB
    host.close()


def test_messages_leave_at_once_at_both_ends(hosts):
    assert hosts[0].send(0, 2, b"hello").wait() == hosts[1].receive(2, 0, 5)[0].wait() == ()
    for connection in (hosts[0].channels._receivers[1], hosts[1].channels._senders[0]):
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_host_that_is_gone_fails_those_who_need_it(hosts, monkeypatch):
    monkeypatch.setattr(channels_module, "GRACE_S", 0.05)
    assert hosts[0].send(0, 2, b"hello").wait() == hosts[1].receive(2, 0, 5)[0].wait() == ()
    waits = hosts[1].receive(2, 0, 5)[0]
    hosts[0].channels.close()
    kind, message = waits.wait()
    assert (kind, hosts[1].failures[0].ranks) == ("HostLostError", (0,))
    assert "Rank 1 waits for a message of device 0" in message
    assert hosts[2].failures == []  # which has nothing to do with it


def test_a_host_that_leaves_when_all_is_done_is_no_failure(hosts, monkeypatch):
    monkeypatch.setattr(channels_module, "GRACE_S", 0.01)
    assert hosts[0].send(0, 2, b"hello").wait() == hosts[1].receive(2, 0, 5)[0].wait() == ()
    hosts[0].channels.close()
    until(lambda: 0 in hosts[1].channels._matching._lost_senders)
    assert hosts[1].failures == []


def test_a_host_that_never_answers_is_named(key):
    host = Host(0, key, deadline_s=0.6)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = silent.getsockname()[1]
        host.channels.set_peers({1: keys.sealed(key, "channel 1", f"127.0.0.1 {where} {31:016x}")})
        kind, message = host.send(0, 2, bytes(MIB)).wait()
    assert kind == "HostLostError"
    assert f"Rank 0 has called rank 1 at 127.0.0.1:{where} for 0.6 s" in message
    assert host.failures == [Failure(kind, message, (1,))]
    host.close()


def test_a_failure_of_the_session_ends_what_waits_and_leaves_its_memory_alone(hosts):
    sent, (received, buffer) = hosts[0].send(0, 2, bytes(MIB)), hosts[2].receive(3, 0, 64 * MIB)
    sending = hosts[0].send(0, 3, b"x" * 64 * MIB)
    until(lambda: buffer[0])
    for host in hosts:
        host.channels.fail(Failure("SwitchLostError", "the switch is gone"))
    ends = {request.wait() for request in (sent, received, sending)}
    assert ends <= {("SwitchLostError", "the switch is gone"), ()}
    assert sent.wait() != ()
    before = bytes(buffer)
    assert hosts[1].receive(2, 0, 1)[0].wait() == sent.wait()
    assert bytes(buffer) == before
    assert [host.failures for host in hosts] == [[]] * 3


def test_what_is_asked_of_channels_that_are_closed_ends(key):
    host = Host(0, key)
    waits = host.receive(0, 2, 1)[0]
    host.close()
    assert waits.wait()[0] == host.receive(0, 2, 1)[0].wait()[0] == "ClosedError"


def foreign_openings(host):
    """Returns what strangers say first."""
    hello = Frame(Kind.HELLO, group=token(host), source=2, target=1)
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n",
        os.urandom(500),
        bytes(5000),
        hello._replace(group=token(host) ^ 1).encode(),
        hello._replace(target=0).encode(),
        *(hello._replace(source=rank).encode() for rank in (1, 3, 2**32 - 1)),  # itself, and no rank of the job
        hello.encode()[:20],
        Frame(Kind.SHORT, 1, 5, 0, 2, 0, 10).encode() + bytes(10),
        Frame(Kind.LONG, 1, size_bytes=1 << 39).encode(),
    ]


def test_strangers_are_counted_and_dropped(hosts, key):
    victim = hosts[1]
    openings = foreign_openings(victim)
    for opening in openings:
        with socket.create_connection(("127.0.0.1", port(victim)), timeout=20) as stranger:
            stranger.sendall(opening)
            stranger.shutdown(socket.SHUT_WR)
            try:
                while stranger.recv(1000):
                    pass
            except ConnectionError:
                pass
    until(lambda: victim.channels.strangers_dropped == len(openings))
    received, buffer = victim.receive(2, 0, 4)
    assert hosts[0].send(0, 2, b"fine").wait() == received.wait() == ()
    assert buffer == b"fine"
    assert victim.failures == []


def test_strangers_that_say_nothing_keep_nobody_out(hosts, monkeypatch):
    monkeypatch.setattr(channels_module, "STRANGERS_MAX", 5)
    victim = hosts[1]
    silent = [socket.create_connection(("127.0.0.1", port(victim))) for _ in range(12)]
    until(lambda: victim.channels.strangers_dropped == 7)
    received, _ = victim.receive(2, 0, MIB)
    assert hosts[0].send(0, 2, bytes(MIB)).wait() == received.wait() == ()
    for stranger in silent:
        stranger.close()


def test_strangers_that_say_nothing_are_dropped_after_a_while(hosts, monkeypatch):
    monkeypatch.setattr(channels_module, "GREETING_S", 0.05)
    with socket.create_connection(("127.0.0.1", port(hosts[1])), timeout=20) as stranger:
        assert stranger.recv(1) == b""
    until(lambda: hosts[1].channels.strangers_dropped == 1)


def test_who_begins_handshakes_and_hangs_up_may_do_so_a_few_times(hosts, key, monkeypatch):
    if key is None:
        pytest.skip("without a key there are no handshakes")
    monkeypatch.setattr(handshakes, "HANDSHAKES_PER_S", 0)  # however long this takes
    victim = hosts[1].channels
    victim._handshakes = handshakes.Handshakes(per_address=3)
    received, _ = hosts[1].receive(2, 0, 4)
    assert hosts[0].send(0, 2, b"fine").wait() == received.wait() == ()  # one that succeeds doesn't count
    first = secure_channel.Channel.caller(JOB, bytes(32)).take_outgoing()
    for answer in [b"\x16"] * 3 + [b""] * 2:
        with socket.create_connection(("127.0.0.1", port(hosts[1])), timeout=20) as stranger:
            try:
                stranger.sendall(first)
                assert stranger.recv(1) == answer
            except ConnectionError:
                assert answer == b""
    until(lambda: victim.strangers_dropped == 5)


@pytest.mark.parametrize("told", ["", "nonsense", "127.0.0.1 x 0", "127.0.0.1 70000 0000000000000000", "a b c d"])
def test_addresses_that_no_host_tells_are_refused_by_name(hosts, key, told):
    for text in (told, keys.sealed(key, "channel 1", told), keys.sealed(bytes(32), "channel 1", hosts[1].address)):
        if key is None and text == keys.sealed(bytes(32), "channel 1", hosts[1].address):
            continue
        with pytest.raises(JoinError, match="have the address of rank 1 as a host of this job tells it"):
            hosts[0].channels.set_peers({1: text})
    with pytest.raises(JoinError, match="rank 2"):
        hosts[0].channels.set_peers({2: hosts[1].told if key else ""})


def test_whoever_knows_the_token_but_not_the_key_is_a_stranger(hosts, key):
    if key is None:
        pytest.skip("without a key, whoever knows the token is a host of the job")
    hello = Frame(Kind.HELLO, group=token(hosts[1]), source=0, target=1).encode()
    tls = secure_channel.context(bytes(32), server_side=False)
    raw = socket.create_connection(("127.0.0.1", port(hosts[1])), timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        tls.wrap_socket(raw, server_hostname=secure_channel.server_name(JOB))
    with socket.create_connection(("127.0.0.1", port(hosts[1])), timeout=20) as plain:
        plain.sendall(hello)
        plain.settimeout(20)
        assert not plain.recv(1000).startswith(Frame(Kind.WELCOME).encode()[:4])
    until(lambda: hosts[1].channels.strangers_dropped == 2)


@contextmanager
def host_0_calls(called, key):
    """Gives the stream on which host 0, as this test plays it, has greeted another one."""
    with socket.create_connection(("127.0.0.1", port(called)), timeout=20) as raw:
        tls = None if key is None else secure_channel.context(key, server_side=False)
        name = secure_channel.server_name(JOB)
        stream = raw if tls is None else tls.wrap_socket(raw, server_hostname=name, suppress_ragged_eofs=True)
        stream.sendall(Frame(Kind.HELLO, group=token(called), source=0, target=1).encode())
        assert stream.recv(1000) == Frame(Kind.WELCOME).encode()
        yield stream
        stream.close()


def test_each_part_of_a_message_is_progress(hosts, key):
    hosts[1].receive(2, 0, 2 * MIB)
    with host_0_calls(hosts[1], key) as stream:
        stream.sendall(Frame(Kind.LONG, 1, GROUP.id, 0, 2, 0, 2 * MIB).encode())
        assert stream.recv(1000) == Frame(Kind.GRANT, 1).encode()
        stream.sendall(Frame(Kind.DATA, 1, size_bytes=2 * MIB).encode() + bytes(MIB))
        until(lambda: hosts[1].channels.moved_bytes > MIB)
    sent = hosts[1].send(2, 3, bytes(MIB))
    assert hosts[2].receive(3, 2, MIB)[0].wait() == sent.wait() == ()
    assert hosts[1].channels.moved_bytes > 2 * MIB


def test_a_host_that_sends_nonsense_is_lost(hosts, key, monkeypatch):
    monkeypatch.setattr(channels_module, "GRACE_S", 0.01)
    waits = hosts[1].receive(2, 0, 5)[0]
    with host_0_calls(hosts[1], key) as stream:
        stream.sendall(Frame(Kind.DATA, 1, size_bytes=1 << 30).encode())
        kind, message = waits.wait()
    assert kind == "HostLostError"
    assert "which weren't asked for" in message
