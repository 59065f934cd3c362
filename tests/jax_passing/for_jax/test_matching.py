"""Messages meet their receives between hosts that are joined by queues here, in whatever order things happen."""

import random
from collections import deque

import pytest

from jax_passing.errors import Failure
from jax_passing.for_jax import matching as matching_module
from jax_passing.for_jax.frames import REPLIES, SHORT_BYTES, Frame, FrameError, Kind
from jax_passing.for_jax.matching import Ends, Matching

LONG = SHORT_BYTES + 1


class Request:
    """A request that notes its end."""

    end = None

    def done(self, *end):
        assert self.end is None, "it ended twice"
        self.end = end


class Host:
    def __init__(self, network, rank):
        self.network, self.rank, self.failures = network, rank, []
        self.matching = Matching(rank, self.transmit, self.on_failure)

    def transmit(self, peer, frame, data):
        assert frame.payload_bytes == (0 if data is None else len(data))
        self.network.ways[self.rank, peer, frame.kind in REPLIES].append((frame, data))

    def on_failure(self, failure):
        self.failures.append(failure)
        self.matching.fail(failure)

    def send(self, peer, data, source=0, target=0, tag=0, group=1):
        request = Request()
        self.matching.send(Ends(peer, group, source, target, tag), "group", memoryview(data), request)
        return request

    def receive(self, peer, size_bytes, source=0, target=0, tag=0, group=1):
        request, buffer = Request(), bytearray(size_bytes)
        self.matching.receive(Ends(peer, group, source, target, tag), "group", memoryview(buffer), request)
        return request, buffer


class Network:
    """Frames wait here until a test lets them pass."""

    def __init__(self, host_count=2):
        self.ways = {
            (a, b, reply): deque() for a in range(host_count) for b in range(host_count) for reply in (False, True)
        }
        self.hosts = [Host(self, rank) for rank in range(host_count)]

    def step(self, way):
        sender, to, is_reply = way
        frame, data = self.ways[way].popleft()
        receiver = self.hosts[to].matching
        if is_reply:
            receiver.heard_from_receiver(sender, frame)
            return
        if frame.payload_bytes:
            receiver.memory_for(sender, frame)[:] = data
        receiver.heard_from_sender(sender, frame)

    def run(self, choose=lambda ways: ways[0]):
        while full := [way for way, queue in self.ways.items() if queue]:
            self.step(choose(full))


@pytest.fixture
def network():
    return Network()


@pytest.mark.parametrize("size_bytes", [0, 1, SHORT_BYTES, LONG])
@pytest.mark.parametrize("receive_first", [True, False], ids=["posted early", "posted late"])
@pytest.mark.parametrize("peer", [0, 1], ids=["on the same host", "on another host"])
def test_a_message_meets_its_receive(network, size_bytes, receive_first, peer):
    data, (sender, receiver) = random.Random(1).randbytes(size_bytes), (network.hosts[0], network.hosts[peer])
    if receive_first:
        received, buffer = receiver.receive(0, size_bytes)
        network.run()
    sent = sender.send(peer, data)
    network.run()
    if not receive_first:
        assert (sent.end is None) == (size_bytes == LONG or not peer)  # memory that is still needed isn't given back
        received, buffer = receiver.receive(0, size_bytes)
        network.run()
    assert (sent.end, received.end, bytes(buffer)) == ((), (), data)


def test_messages_of_the_same_ends_meet_receives_in_order_and_others_dont_disturb(network):
    sender, receiver = network.hosts
    sender.send(1, b"other tag", tag=1)
    sender.send(1, b"other device", target=3)
    sender.send(1, b"other group", group=2)
    sizes = [5, LONG, 7, 2 * LONG, 0]
    data = [bytes([at]) * size for at, size in enumerate(sizes)]
    for each in data:
        sender.send(1, each)
    network.run()
    for each in data:
        received, buffer = receiver.receive(0, len(each))
        network.run()
        assert (received.end, bytes(buffer)) == ((), each)
    assert bytes(receiver.receive(0, 11, group=2)[1]) == b"other group"
    assert bytes(receiver.receive(0, 9, tag=1)[1]) == b"other tag"


def test_whoever_runs_ahead_keeps_within_bounds_and_all_comes(network, monkeypatch):
    monkeypatch.setattr(matching_module, "CREDIT_BYTES", 3 * SHORT_BYTES)
    monkeypatch.setattr(matching_module, "KEPT_BYTES_MAX", 6 * SHORT_BYTES)
    sender, receiver = network.hosts
    data = [bytes([at]) * SHORT_BYTES for at in range(10)]
    sent = [sender.send(1, each) for each in data]
    network.run()
    assert [each.end for each in sent] == [()] * 2 + [None] * 8
    for each in data:
        received, buffer = receiver.receive(0, SHORT_BYTES)
        network.run()
        assert (received.end, bytes(buffer)) == ((), each)
    assert [each.end for each in sent] == [()] * 10
    assert sender.send(1, data[0]).end == ()  # there is credit again


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_posting_and_arrival_completes(seed):
    """Each pair of devices posts in its own order, hosts have several of them, and frames pass in any order in which
    connections may bring them."""
    chance = random.Random(seed)
    network = Network(3)
    todo, expected, requests = [], [], []
    for pair in range(8):
        a, b = chance.randrange(3), chance.randrange(3)
        sends, receives = [], []
        for _ in range(chance.randrange(1, 6)):
            data = chance.randbytes(chance.choice([0, 3, SHORT_BYTES, LONG]))
            sends.append((a, "send", b, data, pair))
            receives.append((b, "receive", a, data, pair))
        todo += [sends, receives]
    while todo or any(network.ways.values()):
        full = [way for way, queue in network.ways.items() if queue]
        if full and (not todo or chance.random() < 0.7):
            network.step(chance.choice(full))
            continue
        actions = chance.choice(todo)
        rank, what, peer, data, pair = actions.pop(0)
        if not actions:
            todo.remove(actions)
        if what == "send":
            requests.append(network.hosts[rank].send(peer, data, group=pair))
        else:
            request, buffer = network.hosts[rank].receive(peer, len(data), group=pair)
            requests.append(request)
            expected.append((buffer, data))
    assert {request.end for request in requests} == {()}, f"seed {seed}"
    assert [bytes(buffer) for buffer, _ in expected] == [data for _, data in expected], f"seed {seed}"


@pytest.mark.parametrize(("sent_bytes", "wanted_bytes"), [(10, 20), (LONG, 20), (0, 1), (20, LONG)])
@pytest.mark.parametrize("receive_first", [True, False])
@pytest.mark.parametrize("peer", [0, 1], ids=["on the same host", "on another host"])
def test_sizes_that_differ_fail_both_and_name_both(network, sent_bytes, wanted_bytes, receive_first, peer):
    hosts = network.hosts[0], network.hosts[peer]
    posts = [
        lambda: hosts[1].receive(0, wanted_bytes, source=4, target=5)[0],
        lambda: hosts[0].send(peer, bytes(sent_bytes), source=4, target=5),
    ]
    received, sent = (post() for post in posts) if receive_first else reversed([post() for post in posts[::-1]])
    network.run()
    for host in hosts:
        (failure,) = host.failures
        assert failure.kind == "ProgramMismatchError"
        assert f"Rank 0 sends {sent_bytes} bytes from device 4 to device 5 of group" in failure.message
        assert f"rank {peer} receives {wanted_bytes} bytes" in failure.message
    assert received.end == (failure.kind, failure.message)
    assert sent.end in ((failure.kind, failure.message), ())


def test_after_a_failure_all_requests_end_with_it(network):
    sender, receiver = network.hosts
    requests = [sender.send(1, bytes(LONG)), sender.send(0, b"own"), sender.receive(1, 4)[0], receiver.receive(0, 9)[0]]
    sender.matching.fail(Failure("SwitchLostError", "gone"))
    sender.matching.fail(Failure("HostLostError", "another"))
    requests += [sender.send(1, b""), sender.receive(1, 0)[0]]
    assert [request.end for request in requests] == [("SwitchLostError", "gone")] * 3 + [None] + [requests[0].end] * 2


def test_a_host_that_is_lost_is_a_failure_for_those_who_need_it(network):
    sender, receiver = network.hosts
    kept = b"came in time"
    sender.send(1, kept)
    network.run()
    receiver.matching.lost_sender(0, "reset by peer")
    sender.matching.lost_receiver(1, "reset by peer")
    assert receiver.failures == sender.failures == []
    received, buffer = receiver.receive(0, len(kept))
    assert (received.end, bytes(buffer)) == ((), kept)
    assert receiver.receive(0, 4, source=3)[0].end[0] == "HostLostError"
    assert "waits for a message of device 3 of group, and has no connection to rank 0" in receiver.failures[0].message
    assert sender.send(1, b"more", target=2).end[0] == "HostLostError"
    assert "can't send to device 2 of group" in sender.failures[0].message
    assert sender.failures[0].ranks == (1,)


def test_what_waits_for_a_host_fails_when_it_is_lost(network):
    sender, receiver = network.hosts
    posted = receiver.receive(0, 4)[0]
    granted = receiver.receive(0, LONG, tag=1)[0]
    sent = sender.send(1, bytes(LONG), tag=1)
    network.step((0, 1, False))
    receiver.matching.lost_sender(0, "why")
    sender.matching.lost_receiver(1, "why")
    assert {each.end[0] for each in (posted, granted, sent)} == {"HostLostError"}


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind not in (Kind.SHORT, Kind.LONG)], ids=lambda kind: kind.name
)
def test_frames_that_make_no_sense_are_refused(network, kind):
    host = network.hosts[0].matching
    with pytest.raises(FrameError):
        host.heard_from_sender(1, Frame(kind, 5))
    with pytest.raises(FrameError):
        host.heard_from_receiver(1, Frame(kind, 5))


def test_bytes_come_only_once_and_only_when_they_are_wanted(network):
    sender, receiver = network.hosts
    sender.send(1, bytes(LONG))
    network.step((0, 1, False))
    data = Frame(Kind.DATA, 1, size_bytes=LONG)
    with pytest.raises(FrameError):  # before the grant
        receiver.matching.memory_for(0, data)
    request = receiver.receive(0, LONG)[0]
    with pytest.raises(FrameError):
        receiver.matching.memory_for(0, data._replace(size_bytes=LONG - 1))
    with pytest.raises(FrameError):
        sender.matching.heard_from_receiver(1, Frame(Kind.TAKEN, 1))
    network.run()
    assert request.end == ()
    with pytest.raises(FrameError):
        receiver.matching.heard_from_sender(0, data)
    with pytest.raises(FrameError):
        sender.matching.heard_from_receiver(1, Frame(Kind.GRANT, 1))


@pytest.mark.parametrize("kind", [Kind.SHORT, Kind.LONG])
def test_a_host_that_sends_more_than_it_may_is_refused(network, monkeypatch, kind):
    monkeypatch.setattr(matching_module, "KEPT_BYTES_MAX", 100 * matching_module.OVERHEAD_BYTES)
    receiver = network.hosts[1].matching
    with pytest.raises(FrameError, match="more comes than is wanted"):
        for number in range(200):
            receiver.heard_from_sender(0, Frame(kind, number))
    assert number == 101
