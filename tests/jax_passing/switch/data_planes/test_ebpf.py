"""The program in the kernel beside the C++ slot pool: to packets of hosts in namespaces both give the same answers."""

import ctypes
import random
import re
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.net.bridge_network import SWITCH_MAC, BridgeNetwork
from support.net.ebpf_here import missing
from support.net.frames import checksum
from support.net.namespaces import inside
from support.switch.in_process import until

from jax_passing import _native
from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import HEADER, LANES_MAX, MAGIC, PROTOCOL
from jax_passing.switch.data_planes import ebpf, libbpf
from jax_passing.switch.data_planes.data_plane import DataPlaneError, Group, JobSlots, SlotVersion

HOSTS = 3
UDP_SEGMENT = 103
WHOLE = HEADER.size + 4 * LANES_MAX


pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no eBPF here: {missing()}")


@pytest.fixture(scope="module")
def network():
    with BridgeNetwork("ebpf", HOSTS) as network:
        yield network


@pytest.fixture
def plane(network):
    with inside(network.switch):
        plane = ebpf.EbpfDataPlane(network.switch_address, 0, ["bridge"], slot_total=256, lanes_per_chunk=360)
    yield plane
    plane.close()


@pytest.fixture
def workers(network, plane):
    sockets = [network.udp_socket(host, plane.port) for host in network.hosts]
    yield sockets
    for one in sockets:
        one.close()


def job_of(workers, **changes) -> JobSlots:
    job = {"job": 7, "epoch": 3, "slot_first": 64, "slot_count": 64}
    addresses = tuple(one.getsockname() for one in workers)
    return JobSlots(**{**job, "addresses": addresses, **changes})


def pool_of(*jobs: JobSlots) -> _native.SlotPool:
    pool = _native.SlotPool(256)
    for job in jobs:
        shape = {"job": job.job, "epoch": job.epoch, "slot_first": job.slot_first, "slot_count": job.slot_count}
        pool.add_job(**shape, addresses=job.addresses, parent=None, reach=job.reach)
    return pool


def packet(worker=0, slot=64, sequence=1, lanes=(1, 2, 3), **changes) -> bytes:
    fields = {"magic": MAGIC, "protocol": PROTOCOL, "type": 1, "flags": 0, "job": 7, "epoch": 3}
    fields |= {"worker": worker, "slot": slot, "sequence": sequence, "version": 0, "format": 1, "count": len(lanes)}
    fields |= changes
    return HEADER.pack(*fields.values()) + struct.pack(f"!{len(lanes)}I", *lanes)


def send_together(host: socket.socket, packets: list[bytes]) -> None:
    """One super-packet. All but the last have one size."""
    segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(packets[0])))] if len(packets) > 1 else []
    host.sendmsg([b"".join(packets)], segment)


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
        verdict, to, job, worker, result = pool.on_packet(one, workers[sender].getsockname())
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
    plane.probe(group, job.job, job.epoch, nonce=99)
    for one in listeners:
        probes = [one.recv(2048) for _ in range(44)]
        assert [struct.unpack_from("!2xB7xHI", probe) for probe in probes] == [(3, index, 99) for index in range(44)]
    plane.add_job(JobSlots(**{**vars(job), "group": group}))
    pool = pool_of(job)

    def exchange(listening: list[socket.socket], sequence: int, places: range) -> None:
        for worker in network.hosts:
            packets = [packet(worker, 64 + i, sequence, [i] * 360) for i in (places if worker else range(10))]
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


def _frame(
    network, port: int, payload: bytes, *, with_checksum=True, spoilt=False, options=b"", fragment=0, to=None
) -> bytes:
    """From host 0."""
    ends = socket.inet_aton(network.address(0)) + socket.inet_aton(network.switch_address)
    length = 8 + len(payload)
    udp = struct.pack("!HHHH", 5000, port, length, 0) + payload

    if with_checksum:
        check = checksum(ends + struct.pack("!HH", 17, length) + udp) ^ (1 if spoilt else 0)
        udp = udp[:6] + struct.pack("!H", check) + udp[8:]
    size = 5 + len(options) // 4
    ip = struct.pack("!BBHHHBBH", 0x40 | size, 0, 4 * size + length, 1, fragment, 64, 17, 0) + ends + options
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    macs = bytes.fromhex((to or SWITCH_MAC).replace(":", "")) + b"\x02\0\0\0\0\1"
    return macs + b"\x08\0" + ip + udp


def test_what_the_stack_would_refuse_isnt_added(network, plane, workers):
    """Frames as they come from a network card that checks nothing."""
    with inside(network.namespace(0)):
        card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        card.bind(("eth0", 0x0800))
    card.settimeout(30)
    addresses = ((network.address(0), 5000),)
    plane.add_job(job_of(workers, addresses=addresses))

    def answer() -> bytes:
        while (frame := card.recv(2048))[26:30] != socket.inet_aton(network.switch_address):
            pass  # our own
        return frame

    def counted(frame: bytes) -> int:
        """Frames keep their order: one that is answered follows, and when its answer is here, all were dealt with."""
        before = plane.stats()["packets_received"]
        for one in (frame, _frame(network, plane.port, packet(0, 65, 1, [7]))):
            card.send(one)
        while answer()[42:] != packet(0xFFFF, 65, 1, [7], type=2):
            pass
        return plane.stats()["packets_received"] - before - 1

    good = packet(0, 64, 1, [5] * 360)
    card.send(_frame(network, plane.port, good))
    result = answer()
    assert result[:14] == b"\x02\0\0\0\0\1" + bytes.fromhex(SWITCH_MAC.replace(":", "")) + b"\x08\0"
    assert result[42:] == packet(0xFFFF, 64, 1, [5] * 360, type=2)
    assert result[40:42] == b"\0\0"  # no checksum, which isn't a wrong one
    assert counted(_frame(network, plane.port, good, with_checksum=False)) == 1
    assert counted(_frame(network, plane.port, good, spoilt=True)) == 0
    assert counted(_frame(network, plane.port, good, options=b"\1\1\1\1")) == 0
    assert counted(_frame(network, plane.port, good, fragment=0x2000)) == 0
    assert counted(_frame(network, plane.port, good, fragment=100)) == 0
    assert counted(_frame(network, plane.port + 1, good)) == 0
    assert counted(_frame(network, plane.port, good, to="01:00:5e:00:00:01")) == 0
    vlan = _frame(network, plane.port, good)
    assert counted(vlan[:12] + b"\x81\0\0\5" + vlan[12:]) == 0
    short = _frame(network, plane.port, packet(0, 64, 1, [5]))
    assert counted(short + b"\0" * (60 - len(short))) == 1  # Ethernet's padding
    assert counted(short[:-2]) == 0
    assert plane.stats()["complete"] == 2  # of both slots
    card.close()


def test_ordinary_traffic_goes_on(network, plane):
    """Between hosts, and to another port of the switch."""
    for namespace, address in ((network.switch, network.switch_address), (network.namespace(1), network.address(1))):
        with inside(namespace):
            there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((address, 0))
        there.settimeout(30)
        with inside(network.namespace(0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            here.sendto(packet(), there.getsockname())
        assert there.recv(2048) == packet()
        there.close()
    assert plane.stats()["packets_received"] == 0


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


def _attached(network) -> int:
    """Programs at the ingress of the bridge."""
    query = libbpf.library().bpf_prog_query
    query.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    count = ctypes.c_uint32(0)
    with inside(network.switch):
        index = socket.if_nametoindex("bridge")
        assert query(index, libbpf.TCX_INGRESS, 0, None, None, ctypes.byref(count)) == 0
    return count.value


def _loaded() -> set[tuple[str, int]]:
    """All programs and maps of this machine."""
    library = libbpf.library()
    found = set()
    for kind in ("prog", "map"):
        number = ctypes.c_uint32(0)
        while getattr(library, f"bpf_{kind}_get_next_id")(number, ctypes.byref(number)) == 0:
            found.add((kind, number.value))
    return found


def _held_by(process: int) -> set[tuple[str, int]]:
    """Programs and maps: others of this machine come and go."""
    told = "\n".join(file.read_text() for file in Path(f"/proc/{process}/fdinfo").iterdir())
    return {(kind, int(number)) for kind, number in re.findall(r"^(prog|map)_id:\s*(\d+)", told, re.M)}


@pytest.mark.parametrize("absent_at_a_check", [True, False])
def test_a_device_that_is_made_again_is_taken_up_again(network, plane, workers, absent_at_a_check):
    """And groups are reached through the new one, by the kernel and by the process."""

    def check() -> str:
        with inside(network.switch):
            return plane.check()

    def add_up(**changes: int) -> None:
        for worker, host in enumerate(workers):
            host.send(packet(worker, **changes))

    plane.add_job(job_of(workers))
    add_up()
    assert [host.recv(2048)[2] for host in workers] == [2] * HOSTS
    assert check() == ""
    network.delete_bridge()
    if absent_at_a_check:
        assert check() == "the network device bridge is gone"
        assert check() == ""
        with pytest.raises(DataPlaneError, match="was lost: no packets are taken from bridge. Bring it back"):
            plane.add_job(job_of(workers, epoch=4))
    network.add_bridge()
    assert check() == ("" if absent_at_a_check else "the network device bridge was replaced")
    assert check() == ""
    assert _attached(network) == 1

    with inside(network.switch):
        group = plane.group(7, network.switch_address)
    with inside(network.namespace(0)):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.settimeout(30)
        listener.bind((group.address, group.port))
        member = socket.inet_aton(group.address) + socket.inet_aton(network.address(0))
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    plane.probe(group, 7, 4, 1)
    assert [listener.recv(2048)[2] for _ in range(44)] == [3] * 44
    plane.add_job(job_of(workers, epoch=4, group=group))
    add_up(epoch=4)
    assert listener.recv(2048)[2] == 2
    # Overlapping super-packets: the process sends the result.
    send_together(workers[0], [packet(0, epoch=4, slot=65), packet(0, epoch=4, slot=66)])
    send_together(workers[1], [packet(1, epoch=4, slot=65), packet(1, epoch=4, slot=66)])
    send_together(workers[2], [packet(2, epoch=4, slot=65), packet(2, epoch=4, slot=67)])
    assert listener.recv(2048)[2] == 2
    assert plane.stats()["results_handed_up"] == 1
    listener.close()


@pytest.mark.parametrize("how", ["close", "kill"])
def test_nothing_is_left_behind(network, how):
    program = (
        "import sys; from jax_passing.switch.data_planes.ebpf import EbpfDataPlane; "
        f"plane = EbpfDataPlane({network.switch_address!r}, 0, ['bridge'], slot_total=16, lanes_per_chunk=360); "
        "print('ready', flush=True); sys.stdin.readline(); plane.close(); print('closed', flush=True); sys.stdin.read()"
    )
    command = network.command(None, [sys.executable, "-P", "-c", program])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        made = _held_by(process.pid)
        assert len(made) >= 6
        assert made <= _loaded()
        assert _attached(network) == 1
        if how == "close":
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "closed\n"
        else:
            process.kill()
            process.wait(10)
        until(lambda: not made & _loaded())  # the kernel frees them a little later
        assert _attached(network) == 0
        process.kill()


def test_settings_that_cant_be_are_explained(network):
    def make(host=network.switch_address, devices=("bridge",)):
        with inside(network.switch):
            ebpf.EbpfDataPlane(host, 0, devices, slot_total=16, lanes_per_chunk=360).close()

    with pytest.raises(ConfigError, match="No network device 'prot0' here; there are .*port0.*--device"):
        make(devices=["prot0"])
    with pytest.raises(ConfigError, match="one IPv4 address, not of '0.0.0.0'.*--listen"):
        make(host="0.0.0.0")
    make(devices=["port0", "port1"])


def _start_with(network, capabilities: str) -> subprocess.CompletedProcess:
    program = (
        "from jax_passing.switch.data_planes.ebpf import EbpfDataPlane; "
        f"EbpfDataPlane({network.switch_address!r}, 0, ['bridge'], slot_total=16, lanes_per_chunk=360).close()"
    )
    limits = [f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    command = network.command(None, ["setpriv", *limits, sys.executable, "-P", "-c", program])
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("capabilities", "lacking"),
    [
        ("-all", "CAP_BPF and CAP_PERFMON and CAP_NET_ADMIN"),
        ("-all,+bpf,+net_admin", "CAP_PERFMON"),
        ("-all,+bpf,+perfmon", "CAP_NET_ADMIN"),
        ("-all,+perfmon,+net_admin", "CAP_BPF"),
    ],
)
def test_who_may_not_load_it_is_told_so(network, capabilities, lacking):
    said = _start_with(network, capabilities).stderr.splitlines()[-1]
    assert f"ConfigError: No eBPF program may be loaded here: this process lacks {lacking}. Run" in said
    assert "as root, or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN" in said


def test_it_takes_no_more_than_these_capabilities(network):
    done = _start_with(network, "-all,+bpf,+perfmon,+net_admin")
    assert done.returncode == 0, done.stderr


def test_jobs_are_refused_while_one_of_several_devices_is_gone(network, workers):
    def rename(old: str, new: str) -> None:
        subprocess.run(network.command(None, ["ip", "link", "set", old, "down"]), check=True)
        subprocess.run(network.command(None, ["ip", "link", "set", old, "name", new, "up"]), check=True)

    with inside(network.switch):
        plane = ebpf.EbpfDataPlane(network.switch_address, 0, ["port0", "port1"], slot_total=256, lanes_per_chunk=360)
        plane.add_job(job_of(workers))
        rename("port1", "away1")
        assert plane.check() == "the network device port1 is gone"
        with pytest.raises(DataPlaneError, match="was lost: no packets are taken from port1. Bring it back"):
            plane.add_job(job_of(workers, epoch=4))
        plane.remove_job(7)
        rename("away1", "port1")
        assert plane.check() == ""
        plane.add_job(job_of(workers, epoch=4))
        plane.close()


def test_a_group_needs_a_bridge(network):
    with inside(network.switch):
        settings = {"slot_total": 16, "lanes_per_chunk": 360}
        plane = ebpf.EbpfDataPlane(network.switch_address, 0, ["port0", "port1"], **settings)
        assert plane.group(1, network.switch_address) is None
        plane.close()
        plane = ebpf.EbpfDataPlane(network.switch_address, 0, ["bridge"], **settings, multicast=False)
        assert plane.group(1, network.switch_address) is None
        plane.close()
        plane = ebpf.EbpfDataPlane(network.switch_address, 0, ["bridge"], **settings)
        assert isinstance(plane.group(1, network.switch_address), Group)
        plane.close()
