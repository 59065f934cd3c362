"""Hosts through the P4 program on bmv2: the bits of the C++ switch, whatever happens to packets and to the device.

Through simple_switch's Thrift server, and again, where it may differ, through simple_switch_grpc's P4Runtime server.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jax_passing.switch.server.settings import BMV2_SLOTS_PER_JOB
from support.jobs import forgeries
from support.jobs.bmv2_network import CONTROL, PORT, Bmv2Network
from support.jobs.cluster import PASSING, counters, digest, finish
from support.net.namespaces import missing
from support.p4 import tools

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

LANES = 64
TRAIN = Path(__file__).parents[3] / "examples" / "train_digits.py"
FAULTS = (0.01, 0.01, 0.1)
BOTH = pytest.mark.parametrize("data_plane", ["bmv2", "p4runtime"])


MISSING = missing("ss")
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=f"no network of our own: {MISSING}"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = tools.find("p4c-bm2-ss", "PASSING_P4C")
    path = tmp_path_factory.mktemp("p4") / "passing.json"
    options = ["--arch", "v1model", f"-DLANES={LANES}", "-o", str(path)]
    options += ["--p4runtime-files", str(path.with_suffix(".p4info.bin"))]
    tools.compile_program(compiler, tools.V1MODEL, *options)
    return path


@pytest.fixture
def build(tmp_path: Path, program: Path) -> Iterator[Callable[..., Bmv2Network]]:
    networks = []

    def run(hosts: int = 2, faults: tuple[float, float, float] | None = None, data_plane: str = "bmv2") -> Bmv2Network:
        if data_plane == "p4runtime":
            pytest.importorskip("grpc", reason="no grpcio")
        networks.append(Bmv2Network(tmp_path, program, hosts, faults, data_plane))
        networks[-1].build()
        networks[-1].start_device()
        return networks[-1]

    yield run
    for network in networks:
        network.remove()


@BOTH
def test_every_dtype_and_transform_has_the_bits_of_the_software_switch(
    build: Callable[..., Bmv2Network], cluster: "Cluster", hosts_key: Path, data_plane: str
) -> None:
    network = build(data_plane=data_plane)
    switch = network.start_switch()
    through_p4 = digest(network.start_hosts("sums/sums.py"))
    confidential = digest(network.start_hosts("sums/sums.py", JAX_PASSING_HOSTS_KEY_FILE=str(hosts_key)))
    counted = counters(switch)
    assert counted["complete"] > 1000
    assert not {name for name in counted if name.startswith("foreign") or name == "malformed"}
    assert digest(cluster.start("sums/sums.py", devices=1)) == through_p4 == confidential


@BOTH
def test_loss_and_reordering_and_repetition_change_no_bit(
    build: Callable[..., Bmv2Network], cluster: "Cluster", data_plane: str
) -> None:
    network = build(faults=FAULTS, data_plane=data_plane)
    switch = network.start_switch()
    through_p4 = digest(network.start_hosts("sums/sums.py"))
    counted = counters(switch)
    assert min(counted[verdict] for verdict in ("resend", "duplicate", "stale")) > 0, counted
    assert digest(cluster.start("sums/sums.py", devices=1)) == through_p4


def test_training(build: Callable[..., Bmv2Network], cluster: "Cluster") -> None:
    network = build()
    network.start_switch()
    told = []
    for processes in (network.start_hosts(TRAIN), cluster.start(str(TRAIN), devices=1)):
        finish(processes)
        told.append(re.sub(r", [\d.]+ s of training", "", processes[0].text))
    # Parameters, to all digits that are told, and accuracy; not how long it took.
    lines = [re.findall(r"^(?:accuracy|reference) .*", text, re.M) for text in told]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 2


def test_bench(build: Callable[..., Bmv2Network]) -> None:
    network = build()
    network.start_switch()
    sizes = ["bench", "-b", "1K", "-e", "64K", "--iterations", "2"]
    hosts = network.start_command([*PASSING, *sizes], job="bench")
    finish(hosts)
    rows = re.findall(r"^\s*(\d+) +\d+ +float32 .* (\d+)\s*$", hosts[0].text, re.M)
    assert rows == [(str(size), "0") for size in (1024, 4096, 16384, 65536) for _ in range(2)], hosts[0].text


def test_jobs_at_once(build: Callable[..., Bmv2Network]) -> None:
    network = build()
    switch = network.start_switch()
    jobs = [network.start_hosts("order/matching.py", "1", JAX_PASSING_JOB=job) for job in ("one", "two")]
    for processes in jobs:
        finish(processes)
    assert counters(switch)["epochs_started"] == len(jobs)


def test_forged_packets_change_nothing(build: Callable[..., Bmv2Network]) -> None:
    network = build(hosts=3)
    switch = network.start_switch()
    hosts = network.start_hosts("sums/steps.py", world_size=2)
    forgeries.check(switch, hosts, BMV2_SLOTS_PER_JOB, network.namespace("1"), network.namespace("2"))


@BOTH
def test_a_device_that_is_restarted(build: Callable[..., Bmv2Network], data_plane: str) -> None:
    network = build(data_plane=data_plane)
    switch = network.start_switch()
    device = network.processes[0]
    hosts = network.start_hosts("faults/endless.py", "20", NEXT_SWITCH=f"{CONTROL}:{PORT}")
    for host in hosts:
        host.wait_for("running as process")
    device.stop()
    network.start_device()
    for host in hosts:
        host.wait_for("^raised SwitchLostError after")
    switch.wait_for("is served again")
    finish(hosts)  # each has joined a new job
    for host in hosts:
        host.wait_for("went on with 1.0", 1)
    assert counters(switch)["epochs_started"] == 3


# In trees with C++ switches.


def software(network: Bmv2Network, host: int, port: int = PORT, parent: str | None = None) -> str:
    """A C++ switch on a host; its address."""
    address = f"{network.address(host)}:{port}"
    command = [*PASSING, "switch", "--listen", address]
    switch = network.start(str(host), command if parent is None else [*command, "--parent", parent])
    switch.wait_for("listening on")
    return address


def test_a_rack_below_a_software_spine(build: Callable[..., Bmv2Network], cluster: "Cluster") -> None:
    network = build(hosts=4)
    spine = software(network, 2)
    other = software(network, 2, PORT + 1, parent=spine)
    rack = network.start_switch("--parent", spine)
    hosts = network.start_hosts("sums/sums.py", switches=[f"{CONTROL}:{PORT}"] * 2 + [other] * 2)
    through_p4 = digest(hosts)
    counted = counters(rack)
    assert counted["forwarded"] == counted["answered"] > 1000, counted
    assert digest(cluster.start("sums/sums.py", hosts=4, devices=1)) == through_p4


def test_a_spine_above_software_racks(build: Callable[..., Bmv2Network], cluster: "Cluster") -> None:
    network = build(hosts=2, faults=FAULTS)
    spine = network.start_switch()
    racks = [software(network, host, parent=f"{CONTROL}:{PORT}") for host in range(2)]
    through_p4 = digest(network.start_hosts("sums/sums.py", switches=racks))
    counted = counters(spine)
    assert counted["complete"] > 1000, counted
    assert counted["resend"] > 0, counted
    assert digest(cluster.start("sums/sums.py", devices=1)) == through_p4
