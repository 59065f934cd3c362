"""`jax-passing conformance` on data planes that need a network of their own."""

import pytest

from support.jobs.bmv2_network import CONTROL, PORT, Bmv2Network
from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import PASSING, Process
from support.net import ebpf_here, namespaces
from support.p4 import tools

MISSING, NO_EBPF = namespaces.missing("ss"), ebpf_here.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=f"no network of our own: {MISSING}"),
]


def conformance(switch: str, *flags: str) -> list[str]:
    return [*PASSING, "conformance", "--switch", switch, "--exchanges", "30", *flags]


def check(test: Process) -> None:
    assert test.wait(600) == 0, test.text
    assert ", 0 failed, " in test.text


EBPF = pytest.mark.skipif(NO_EBPF is not None, reason=f"no eBPF here: {NO_EBPF}")


@pytest.mark.parametrize(
    "flags",
    [["--data-plane", "software"], pytest.param(["--data-plane", "ebpf", "--device", "port0"], marks=EBPF)],
)
def test_between_two_machines(flags):
    with BridgeCluster("conformance", 1) as cluster:
        cluster.start_switch(*flags)
        check(cluster.start(0, conformance(cluster.place())))


@pytest.fixture
def bmv2(tmp_path, request):
    """One host, on port 0 of simple_switch or simple_switch_grpc, whose program is for so many lanes."""
    data_plane, lanes = request.param
    if data_plane == "p4runtime":
        pytest.importorskip("grpc", reason="no grpcio")
    compiler = tools.find("p4c-bm2-ss", "PASSING_P4C")
    program = tmp_path / "passing.json"
    options = ["--arch", "v1model", f"-DLANES={lanes}", "-o", str(program)]
    options += ["--p4runtime-files", str(program.with_suffix(".p4info.bin"))]
    tools.compile_program(compiler, tools.V1MODEL, *options)
    network = Bmv2Network(tmp_path, program, hosts=1, data_plane=data_plane)
    try:
        network.build()
        network.start_device()
        yield network
    finally:
        network.remove()


def on_bmv2(network: Bmv2Network, *flags: str) -> Process:
    return network.start("0", conformance(f"{CONTROL}:{PORT}", *flags))


@pytest.mark.parametrize("bmv2", [("bmv2", 8), ("bmv2", 64), ("p4runtime", 64)], indirect=True, ids=str)
def test_bmv2(bmv2):
    bmv2.start_switch()
    check(on_bmv2(bmv2))


@pytest.mark.parametrize("bmv2", [("bmv2", 64)], indirect=True, ids=str)
def test_bmv2_with_a_parent(bmv2):
    parent_at = f"{bmv2.address(0)}:7272"
    bmv2.start_switch("--parent", parent_at)
    check(on_bmv2(bmv2, "--as-parent", parent_at))
