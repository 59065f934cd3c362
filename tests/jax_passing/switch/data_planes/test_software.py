"""The software data plane through the interface, with packets that never had a client."""

import ipaddress
import socket
import time

import pytest

from jax_passing import _native
from jax_passing.conformance.live.tags import PacketKey
from jax_passing.protocol import keys
from jax_passing.protocol.packet import CONTRIBUTION, EVERY_WORKER, RESULT, Packet
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.data_plane import GROUPS, DataPlane, JobKeys, JobSlots, Parent
from jax_passing.switch.data_planes.software import SoftwareDataPlane
from support.switch.in_process import until


@pytest.fixture
def data_plane():
    plane = SoftwareDataPlane("127.0.0.1", 0, slot_total=16, lanes_per_chunk=360)
    yield plane
    plane.close()


@pytest.fixture
def ranks():
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
        one.settimeout(5)
    yield sockets
    for one in sockets:
        one.close()


def test_a_closed_one_leaves_its_port():
    one = SoftwareDataPlane("127.0.0.1", 0, slot_total=16, lanes_per_chunk=360)
    port = one.port
    one.close()
    SoftwareDataPlane("127.0.0.1", port, slot_total=16, lanes_per_chunk=360).close()


def job_of(ranks, **changes):
    job = {"job": 7, "epoch": 3, "slot_first": 8, "slot_count": 4}
    return JobSlots(**{**job, **changes}, addresses=tuple(one.getsockname() for one in ranks))


def test_it_is_a_data_plane(data_plane: DataPlane):
    assert data_plane.host == ""
    assert 0 < data_plane.port < 65536
    assert tuple(name for name in data_plane.stats() if name in VERDICTS) == VERDICTS  # also their numbers in C++
    assert (data_plane.slot_total, data_plane.lanes_per_chunk) == (16, 360)
    assert (data_plane.whole_chunks, data_plane.worker_limit) == (False, 64)
    assert data_plane.stats()["packets_received"] == 0


@pytest.mark.parametrize("changes", [{"slot_count": 3}, {"slot_first": 16}, {"slot_count": 32, "slot_first": 0}])
def test_a_partition_outside_the_switch_is_refused(data_plane, ranks, changes):
    with pytest.raises(ValueError, match=r"\w"):
        data_plane.add_job(job_of(ranks, **changes))


def test_a_job_whose_parent_cant_be_reached_is_refused(data_plane, ranks):
    parent = Parent(job=9, epoch=4, slot_first=0, worker=1, address=("127.0.0.1", 1))
    with pytest.raises(ValueError, match="socket"):
        data_plane.add_job(job_of(ranks, parent=parent))


def packet_of(job, epoch, worker, slot, lane, *, kind=CONTRIBUTION):
    packet = Packet(type=kind, job=job, epoch=epoch, worker=worker, slot=slot, sequence=5, lanes=(lane,))
    return packet.encode()


def test_it_counts_for_whom_the_others_wait(data_plane, ranks):
    assert data_plane.counts(7) is None
    data_plane.add_job(job_of(ranks))
    ranks[0].sendto(packet_of(7, 3, 0, 9, 1), ("127.0.0.1", data_plane.port))
    until(lambda: data_plane.counts(7).waiting)
    time.sleep(0.05)
    oldest = data_plane.counts(7).oldest
    assert (oldest.slot, oldest.version, oldest.sequence, oldest.bitmap) == (9, 0, 5, 0b01)
    assert oldest.waited_us >= 50_000
    ranks[1].sendto(packet_of(7, 3, 1, 9, 1), ("127.0.0.1", data_plane.port))
    ranks[1].recv(2048)
    counts = data_plane.counts(7)
    assert (counts.chunks, counts.lanes, counts.waiting, counts.oldest) == (1, 1, 0, None)
    assert [(worker.contributions, worker.last, worker.resends) for worker in counts.workers] == [(1, 0, 0), (1, 1, 0)]
    assert counts.workers[0].waited_us == 0
    assert counts.workers[1].waited_us >= 50_000 > counts.workers[1].silent_us


def test_planes_have_the_next_ports_and_keys_of_their_own(ranks, monkeypatch):
    plane = SoftwareDataPlane("127.0.0.1", 0, slot_total=32, lanes_per_chunk=360, threads=2)
    assert (plane.planes, plane.slot_total) == (2, 16)
    key = keys.packet_key(b"secret")
    plane.add_job(job_of(ranks, planes=2, keys=JobKeys((key, key), key)))
    sealed = []
    for number in range(2):
        monkeypatch.setattr(keys, "packet_key", lambda _, number=number: keys.of_plane(key, number))
        sent = Packet(job=7, epoch=3, slot=9, sequence=5, lanes=(1,))
        sealed.append(PacketKey(b"secret").sealed(sent, 5))
    for number in range(2):
        ranks[0].sendto(sealed[1 - number], ("127.0.0.1", plane.port + number))  # as somebody may who has seen it
    until(lambda: plane.stats()["forged"] == 2)
    for number in range(2):
        ranks[0].sendto(sealed[number], ("127.0.0.1", plane.port + number))
        until(lambda number=number: not plane.slot_version(9, 0, number).empty)
    counts = plane.counts(7)
    assert (counts.waiting, counts.workers[0].contributions) == (2, 2)
    plane.remove_job(7)
    assert plane.counts(7) is None
    assert plane.overflows() == {0: 0}
    plane.close()


def test_a_job_that_one_plane_refuses_is_at_none(ranks):
    plane = SoftwareDataPlane("127.0.0.1", 0, slot_total=32, lanes_per_chunk=360, threads=2)
    plane.add_job(job_of(ranks, planes=2))
    plane._natives[0].remove_job(7)
    with pytest.raises(ValueError, match="overlap|another"):
        plane.add_job(job_of(ranks, planes=2, job=8))
    assert plane._natives[0].counts(8) is None
    plane.close()


def test_each_worker_is_answered_from_the_address_by_which_it_knows_the_switch(ranks):
    own = ("127.0.0.2", "127.0.0.3")
    plane = SoftwareDataPlane("0.0.0.0", 0, slot_total=16, lanes_per_chunk=360)
    for rank, address in zip(ranks, own, strict=True):
        rank.connect((address, plane.port))  # and so hears no other address; the kernel would take 127.0.0.1
    plane.add_job(job_of(ranks, own_addresses=own))
    for worker, rank in enumerate(ranks):
        rank.send(packet_of(7, 3, worker, 9, 1 + worker))
    for rank in ranks:
        assert rank.recv(2048) == packet_of(7, 3, EVERY_WORKER, 9, 3, kind=RESULT)
    ranks[1].send(packet_of(7, 3, 1, 9, 2))  # asks again
    assert ranks[1].recv(2048) == packet_of(7, 3, EVERY_WORKER, 9, 3, kind=RESULT)
    with pytest.raises(ValueError, match="knows us by one address"):
        plane.add_job(job_of(ranks, own_addresses=own[:1]))
    plane.close()


def test_each_job_gets_a_group_of_its_own(data_plane):
    groups = [data_plane.group(job, "10.0.0.1") for job in range(1, 65536, 15)]
    assert len({group.address for group in groups}) == len(groups)
    assert all(ipaddress.ip_address(group.address) in GROUPS for group in groups)
    assert {(group.port, group.source) for group in groups} == {(7170, "10.0.0.1")}
    assert data_plane.group(1, "10.0.0.2").address != groups[0].address


def test_ipv6_is_unicast_and_so_is_what_is_told_to_be(data_plane):
    assert data_plane.group(1, "2001:db8::1") is None
    plane = SoftwareDataPlane("127.0.0.1", 0, slot_total=16, lanes_per_chunk=360, multicast=False)
    assert plane.group(1, "10.0.0.1") is None
    plane.close()


def test_a_probe_is_heard_by_who_has_joined(data_plane):
    group = data_plane.group(7, "127.0.0.1")
    host = _native.UdpSocket("127.0.0.1", data_plane.port)
    host.join_group(group.address, group.port, job=7, epoch=3, nonce=2**32 - 1)
    assert not host.hears_group()
    data_plane.probe(group, 7, 3, 5, 360)  # another attempt's
    data_plane.probe(group, 7, 3, 2**32 - 1, 360)
    until = time.monotonic() + 1
    while not (heard := host.hears_group()) and time.monotonic() < until:
        time.sleep(0.01)
    host.leave_group()
    with pytest.raises(ValueError, match="joined no group"):
        host.hears_group()
    if not heard:
        pytest.skip("no multicast on this machine's loopback interface")


def test_a_probe_from_an_address_that_isnt_ours_raises(data_plane):
    with pytest.raises(OSError, match="multicast"):
        data_plane.probe(data_plane.group(7, "198.51.100.1"), 7, 3, 5, 360)
