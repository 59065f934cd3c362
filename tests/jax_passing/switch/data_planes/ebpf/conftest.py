"""A program in the kernel adds up what hosts in namespaces send to a bridge."""

import pytest

from jax_passing.switch.data_planes import ebpf
from support.net.bridge_network import BridgeNetwork
from support.net.ebpf_here import missing
from support.net.namespaces import inside
from support.switch.ebpf_packets import HOSTS


@pytest.fixture(scope="module")
def network():
    if missing():
        pytest.skip(f"no eBPF here: {missing()}")
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
