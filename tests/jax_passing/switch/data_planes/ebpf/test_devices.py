"""The program in the kernel follows network devices that come and go, and leaves with its process."""

import ctypes
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jax_passing.errors import ConfigError
from jax_passing.switch.data_planes import ebpf, libbpf
from jax_passing.switch.data_planes.data_plane import DataPlaneError, MulticastGroup
from support.net.namespaces import inside
from support.switch.ebpf_packets import HOSTS, job_of, packet, send_together
from support.switch.in_process import until


def _attached(network) -> int:
    """Counts the programs at the ingress of the bridge."""
    query = libbpf.library().bpf_prog_query
    query.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    count = ctypes.c_uint32(0)
    with inside(network.switch):
        index = socket.if_nametoindex("bridge")
        assert query(index, libbpf.TCX_INGRESS, 0, None, None, ctypes.byref(count)) == 0
    return count.value


def _loaded() -> set[tuple[str, int]]:
    """Finds all programs and maps of this machine."""
    library = libbpf.library()
    found = set()
    for kind in ("prog", "map"):
        number = ctypes.c_uint32(0)
        while getattr(library, f"bpf_{kind}_get_next_id")(number, ctypes.byref(number)) == 0:
            found.add((kind, number.value))
    return found


def _held_by(process: int) -> set[tuple[str, int]]:
    """Finds the programs and maps of one process: others of this machine come and go."""
    told = "\n".join(file.read_text() for file in Path(f"/proc/{process}/fdinfo").iterdir())
    return {(kind, int(number)) for kind, number in re.findall(r"^(prog|map)_id:\s*(\d+)", told, re.M)}


@pytest.mark.parametrize("absent_at_a_check", [True, False])
def test_a_device_that_is_made_again_is_taken_up_again(network, plane, workers, absent_at_a_check):
    """Groups are reached through the new one, too, by the kernel and by the process."""

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
    plane.probe(group, 7, 4, 1, 360)
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
        assert plane.trouble() == "no packets are taken from port1"
        with pytest.raises(DataPlaneError, match="was lost: no packets are taken from port1. Bring it back"):
            plane.add_job(job_of(workers, epoch=4))
        plane.remove_job(7)
        rename("away1", "port1")
        assert plane.check() == plane.trouble() == ""
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
        assert isinstance(plane.group(1, network.switch_address), MulticastGroup)
        plane.close()
