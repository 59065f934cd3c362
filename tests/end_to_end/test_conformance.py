"""`jax-passing conformance` on data planes that need a network of their own."""

import os
import subprocess
import sys

import ebpf_here
import p4_tools
import pytest
from ebpf_here import missing

from .bmv2_network import CONTROL, PORT, Bmv2Network
from .conftest import Process

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]

HOST, SWITCH = "10.88.0.1", "10.88.0.254"


class Pair:
    """A host and a switch, each in a namespace, joined by one link: eth0 at the host, port0 at the switch."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self._made: list[str] = []
        try:
            for end in ("host", "switch"):
                self._ip("netns", "add", self._name(end))
                self._made.append(end)
                self._ip("-n", self._name(end), "link", "set", "lo", "up")
            far = ["peer", "name", "port0", "netns", self._name("switch")]
            self._ip("-n", self._name("host"), "link", "add", "eth0", "type", "veth", *far)
            for end, device, address in (("host", "eth0", HOST), ("switch", "port0", SWITCH)):
                self._ip("-n", self._name(end), "address", "add", f"{address}/24", "dev", device)
                self._ip("-n", self._name(end), "link", "set", device, "up")
        except BaseException:
            self.remove()
            raise

    def _name(self, end: str) -> str:
        return f"conformance-{os.getpid()}-{end}"

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"

    def start(self, end: str, *words: str) -> Process:
        command = [sys.executable, "-P", "-m", "jax_passing.cli", *words]
        process = Process(["ip", "netns", "exec", self._name(end), *command], {"PYTHONUNBUFFERED": "1"})
        self.processes.append(process)
        return process

    def remove(self) -> None:
        for process in self.processes:
            process.stop()
        for end in self._made:
            self._ip("netns", "delete", self._name(end))


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.remove()


def conformance(switch: str, *flags: str) -> list[str]:
    return ["conformance", "--switch", switch, "--exchanges", "30", *flags]


def check(test: Process) -> None:
    assert test.wait(250) == 0, test.text
    assert ", 0 failed, " in test.text


EBPF = pytest.mark.skipif(missing() is not None, reason=f"no eBPF here: {missing()}")


@pytest.mark.parametrize(
    "flags",
    [["--data-plane", "software"], pytest.param(["--data-plane", "ebpf", "--device", "port0"], marks=EBPF)],
)
def test_between_two_machines(pair, flags):
    if "ebpf" in flags and (why := ebpf_here.missing()):
        pytest.skip(why)
    switch = pair.start("switch", "switch", "--listen", f"{SWITCH}:7171", *flags)
    switch.wait_for("listening on", 30)
    check(pair.start("host", *conformance(f"{SWITCH}:7171")))


@pytest.fixture
def bmv2(tmp_path, request):
    """One host, on port 0 of simple_switch, whose program is for so many lanes."""
    compiler = p4_tools.find("p4c-bm2-ss", "PASSING_P4C")
    p4_tools.find("simple_switch", "PASSING_BMV2")
    program = tmp_path / "passing.json"
    lanes = f"-DLANES={request.param}"
    p4_tools.compile_program(compiler, p4_tools.V1MODEL, "--arch", "v1model", lanes, "-o", str(program))
    network = Bmv2Network(tmp_path, program, hosts=1)
    try:
        network.build()
        network.start_device()
        yield network
    finally:
        network.remove()


def on_bmv2(network: Bmv2Network, *flags: str) -> Process:
    command = [sys.executable, "-P", "-m", "jax_passing.cli", *conformance(f"{CONTROL}:{PORT}", *flags)]
    return network.start("0", command)


@pytest.mark.parametrize("bmv2", [8, 64], indirect=True)
def test_bmv2(bmv2):
    bmv2.start_switch()
    check(on_bmv2(bmv2))


@pytest.mark.parametrize("bmv2", [64], indirect=True)
def test_bmv2_with_a_parent(bmv2):
    parent_at = f"{bmv2.address(0)}:7272"
    bmv2.start_switch("--parent", parent_at)
    check(on_bmv2(bmv2, "--as-parent", parent_at))
