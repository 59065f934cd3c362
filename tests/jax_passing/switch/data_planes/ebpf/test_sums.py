"""The program in the kernel beside the C++ slot pool: to packets of hosts in namespaces both give the same answers."""

import random
import socket
import struct
import threading

import pytest

from jax_passing import _native
from jax_passing.protocol.packet import HEADER, LANES_AT_MTU_1500
from jax_passing.switch.data_planes import ebpf
from jax_passing.switch.data_planes.data_plane import JobSlots, SlotVersion
from support.net.namespaces import inside
from support.switch.ebpf_packets import HOSTS, job_of, packet, send_together
from support.switch.in_process import until

WHOLE = HEADER.size + 4 * LANES_AT_MTU_1500


def pool_of(*jobs: JobSlots) -> _native.SlotPool:
    pool = _native.SlotPool(256)
    for job in jobs:
        shape = {"job": job.job, "epoch": job.epoch, "slot_first": job.slot_first, "slot_count": job.slot_count}
        pool.add_job(**shape, addresses=job.addresses, parent=None, reach=job.reach)
    return pool


def silent(host: socket.socket) -> bool:
    host.setblocking(False)
    try:
        host.recv(2048)
    except BlockingIOError:
        return True
    finally:
        host.settimeout(30)
    return False


def check_exchange(plane, pool, workers, sender, packets, sizes=None) -> None:
    """Sends them together, and compares everything with what the pool says to one after the other.

    `sizes`: how many of the workers each job has, if not all.
    """
    before = plane.stats()
    expected: list[list[bytes]] = [[] for _ in workers]
    verdicts: dict[str, int] = {}
    for one in packets:
        verdict, to, job, worker, result, *_ = pool.on_packet(one, workers[sender].getsockname())
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        everybody = range((sizes or {}).get(job, len(workers)))
        for host in everybody if to == "every_worker" else [worker] if to == "worker" else []:
            expected[host].append(result)
    send_together(workers[sender], packets)
    for host, results in zip(workers, expected, strict=True):
        assert [host.recv(2048) for _ in results] == results
    received = before["packets_received"] + len(packets)
    until(lambda: plane.stats()["packets_received"] >= received)  # the kernel may put it off, if nobody is answered
    after = plane.stats()
    changed = {name: after[name] - before[name] for name in ebpf.VERDICTS if after[name] != before[name]}
    assert changed == verdicts
    assert after["packets_received"] - before["packets_received"] == len(packets)
    assert all(silent(host) for host in workers)


def test_a_sum_comes_back_from_the_switch_to_all(plane, workers):
    plane.add_job(job_of(workers))
    assert plane.slot_version(64, 0) == SlotVersion(empty=True, sequence=0, bitmap=0, complete=False)
    for worker, host in enumerate(workers):
        host.send(packet(worker, lanes=[worker + 1, 2**32 - 1, 10], flags=1 << worker))
    assert {host.recv(2048) for host in workers} == {packet(0xFFFF, lanes=[6, 2**32 - 3, 30], type=2, flags=7)}
    assert plane.slot_version(64, 0) == SlotVersion(empty=False, sequence=1, bitmap=7, complete=True)
    counts = plane.stats()
    assert counts["packets_sent"] == 3
    assert set(ebpf.VERDICTS) <= set(_native.SoftwareDataPlane("127.0.0.1", 0, 1).stats())


@pytest.mark.parametrize("seed", range(4))
def test_any_exchange_is_answered_as_the_slot_pool_answers_it(plane, workers, seed):
    """Single packets and super-packets, good and bad ones, of which some, all or none are answered."""
    rng = random.Random(seed)
    jobs = [
        job_of(workers, slot_count=8),
        job_of(workers[:1], job=65535, epoch=9, slot_first=72, slot_count=4),
        job_of(workers[:2], job=300, epoch=65535, slot_first=248, slot_count=8),
    ]
    for job in jobs:
        plane.add_job(job)
    pool = pool_of(*jobs)
    sizes = {job.job: len(job.addresses) for job in jobs}
    for _ in range(400):
        job = rng.choice(jobs)
        sender = rng.randrange(HOSTS)
        lanes_of = rng.choice([1, 3, 7, 8, 9, 64, 359, 360, 360, 360])
        count = rng.choice([1, 1, 1, 2, 5, 20, 44])
        format_ = rng.choice([1, 1, 2])
        base = rng.randrange(2**32 - 2, 2**32 + 4)
        packets = []
        for i in range(count):
            last = i == count - 1 and count > 1
            lanes = rng.choices(range(2**32), k=rng.randrange(1, lanes_of + 1) if last else lanes_of)
            slot = job.slot_first + (base + i) % job.slot_count
            one = {"job": job.job, "epoch": job.epoch, "slot": slot, "sequence": base % 2**32, "lanes": lanes}
            one |= {"worker": sender, "format": format_, "version": i % 2, "flags": rng.choice([0, 0, 1, 2, 4])}
            bad = {"magic": 0, "protocol": 2, "type": rng.choice([0, 2, 3, 4]), "flags": 8, "job": 8, "epoch": 4}
            bad |= {"worker": rng.randrange(4), "slot": 200, "version": 2, "format": 0, "count": 361}
            if rng.random() < 0.1:
                one |= [rng.choice(list(bad.items()))]
            packets.append(packet(**one))
        if count == 1 and rng.random() < 0.1:
            packets = [rng.choice([b"", packets[0][:19], packets[0][:-1], packets[0] + b"\0\0\0\0", bytes(1472)])]
        check_exchange(plane, pool, workers, sender, packets, sizes)
    counts = plane.stats()
    assert counts["packets_unsent"] == 0
    assert counts["results_handed_up"] > 0
    for slot in range(256):
        for version in range(2):
            assert plane.slot_version(slot, version) == SlotVersion(*pool.slot_version(slot, version)) or not any(
                slot - job.slot_first in range(job.slot_count) for job in jobs
            )


@pytest.mark.parametrize("reach", [256, 1 << 30])  # by leaps of the latter sequences wrap
def test_what_is_too_far_ahead_is_dropped(plane, workers, reach):
    for slot_first in (0, 64):  # one job's progress isn't the next one's, nor its neighbour's
        jobs = [
            job_of(workers, slot_first=slot_first, reach=reach),
            job_of(workers, job=8, slot_first=128, reach=reach),
        ]
        for job in jobs:
            plane.add_job(job)
        pool = pool_of(*jobs)
        for leap in range(1, 8):
            for job in jobs[: 1 + leap % 2]:
                for ahead in (reach + 1, reach, 1, -1):
                    sequence = (leap // len(jobs) if job is jobs[1] else leap) * reach - reach + ahead
                    one = {"job": job.job, "slot": job.slot_first + leap % 4, "sequence": sequence % 2**32}
                    for sender in range(HOSTS):
                        check_exchange(plane, pool, workers, sender, [packet(sender, **one)])
        for job in jobs:
            plane.remove_job(job.job)
    assert plane.stats()["too_far"] > 0


def test_a_super_packet_leaves_as_one(plane, workers):
    plane.add_job(job_of(workers))
    for host in workers:
        host.setsockopt(socket.IPPROTO_UDP, 104, 1)  # UDP_GRO
    for worker, host in enumerate(workers):
        send_together(host, [packet(worker, 64 + i, lanes=[worker] * 360) for i in range(43)] + [packet(worker, 107)])
    whole = b"".join([packet(0xFFFF, 64 + i, type=2, lanes=[3] * 360) for i in range(43)])
    for host in workers:
        data, ancillary, _, _ = host.recvmsg(65536, 64)
        assert ancillary == [(socket.IPPROTO_UDP, 104, struct.pack("=i", WHOLE))]
        assert data == whole + packet(0xFFFF, 107, type=2, lanes=[3, 6, 9])
    assert plane.stats()["results_handed_up"] == 0


def test_two_processors_never_lose_or_tear_a_sum(plane, workers):
    """All workers send the same slots at once, over and over: every result is exact."""
    plane.add_job(job_of(workers))
    rounds, slots = 300, 32
    failures = []

    def work(worker: int) -> None:
        rng = random.Random(worker)
        for sequence in range(1, rounds + 1):
            order = list(range(slots))
            rng.shuffle(order)
            expected = [sequence * 6] * 360
            send_together(
                workers[worker], [packet(worker, 64 + i, sequence, [sequence * (worker + 1)] * 360) for i in order]
            )
            missing = {packet(0xFFFF, 64 + i, sequence, expected, type=2) for i in range(slots)}
            while missing:
                data = workers[worker].recv(2048)
                if data not in missing:
                    failures.append((worker, sequence, data))
                    return
                missing.remove(data)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(HOSTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert plane.stats()["complete"] == rounds * slots
    assert plane.stats()["added"] == rounds * slots * (HOSTS - 1)


def test_results_go_to_the_group_once(network, plane, workers):
    job = job_of(workers)
    group = plane.group(job.job, network.switch_address)
    listeners = []
    for host in network.hosts:
        with inside(network.namespace(host)):
            listeners.append(one := socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        one.settimeout(30)
        one.bind((group.address, group.port))
        own = socket.inet_aton(network.address(host))
        one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group.address) + own)
    plane.probe(group, job.job, job.epoch, nonce=99, lanes=360)
    for one in listeners:
        probes = [one.recv(2048) for _ in range(44)]
        assert [struct.unpack_from("!2xB7xHI", probe) for probe in probes] == [(3, index, 99) for index in range(44)]
    plane.add_job(JobSlots(**{**vars(job), "group": group}))
    pool = pool_of(job)

    def exchange(listening: list[socket.socket], sequence: int, offsets: range) -> None:
        for worker in network.hosts:
            packets = [packet(worker, 64 + i, sequence, [i] * 360) for i in (offsets if worker else range(10))]
            answers = [pool.on_packet(one, workers[worker].getsockname())[4] for one in packets]
            send_together(workers[worker], packets)
        for one in listening:
            assert [one.recv(2048) for answer in answers if answer] == [answer for answer in answers if answer]

    exchange(listeners, 1, range(10))
    exchange(listeners, 2, range(5, 15))  # of a super-packet, half
    counts = plane.stats()
    assert counts["results_multicast"] == counts["complete"] == 15
    assert counts["results_handed_up"] == 5
    workers[1].send(packet(1, 70, 2, [6] * 360))  # it alone is answered
    assert workers[1].recv(2048) == packet(0xFFFF, 70, 2, [18] * 360, type=2)
    plane.stop_multicast(job.job)
    exchange(workers, 3, range(10))
    exchange(workers, 4, range(5, 15))
    assert plane.stats()["results_multicast"] == 15
    for one in listeners:
        assert silent(one)
        one.close()


def test_a_new_epoch_starts_with_empty_slots_and_an_ended_job_is_foreign(plane, workers):
    job = job_of(workers)
    plane.add_job(job)
    check_exchange(plane, pool_of(job), workers, 0, [packet()])
    again = job_of(workers, epoch=4)
    plane.add_job(again)
    assert plane.slot_version(64, 0).empty
    check_exchange(plane, pool_of(again), workers, 0, [packet(), packet(epoch=4)])
    plane.remove_job(7)
    check_exchange(plane, pool_of(), workers, 1, [packet(1)])


@pytest.mark.parametrize(
    "changes",
    [
        {"slot_count": 3},
        {"slot_first": 256},
        {"slot_count": 512, "slot_first": 0},
        {"addresses": ()},
        {"addresses": (("::1", 5),)},
        {"job": 8, "slot_first": 96},
    ],
)
def test_a_job_that_doesnt_fit_is_refused(plane, workers, changes):
    plane.add_job(job_of(workers))
    with pytest.raises(ValueError, match=r"\w"):
        plane.add_job(job_of(workers, **changes))
