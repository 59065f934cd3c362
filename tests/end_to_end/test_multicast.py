"""Results by multicast where the network carries it, by unicast where it does not: found out, on namespaces.

Three hosts and the switch on the ports of a bridge, so that the bridge can be told to carry no multicast to a port.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PROGRAMS, Process

HOSTS = 3
NETWORK = "10.85.0"


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") else "ip not found"


pytestmark = pytest.mark.skipif(_missing() is not None, reason=f"no network of our own: {_missing()}")


class Network:
    """Namespaces mc<pid>-bridge, -host0 …, -switch."""

    def __init__(self) -> None:
        self.names = {name: f"mc{os.getpid()}-{name}" for name in ["bridge", "switch", *map(str, range(HOSTS))]}
        self.processes: list[Process] = []

    def ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

    def build(self) -> None:
        for name in self.names.values():
            self.ip("netns", "add", name)
        bridge = self.names["bridge"]
        self.ip("-n", bridge, "link", "add", "name", "br0", "type", "bridge")
        self.ip("-n", bridge, "link", "set", "br0", "up")
        for last, (port, namespace) in enumerate(self.names.items()):
            self.ip("-n", namespace, "link", "set", "lo", "up")
            if port == "bridge":
                continue
            link = ("-n", bridge, "link", "add", "name", f"port{port}", "type", "veth")
            self.ip(*link, "peer", "name", "eth0", "netns", namespace)
            self.ip("-n", bridge, "link", "set", f"port{port}", "master", "br0", "up")
            self.ip("-n", namespace, "address", "add", f"{NETWORK}.{last}/24", "dev", "eth0")
            self.ip("-n", namespace, "link", "set", "eth0", "up")

    def carry_multicast(self, host: int, carries: bool) -> None:
        flag = "on" if carries else "off"
        self.ip("-n", self.names["bridge"], "link", "set", f"port{host}", "type", "bridge_slave", "mcast_flood", flag)

    def start(self, name: str, command: list[str], env: dict[str, str]) -> Process:
        process = Process(["ip", "netns", "exec", self.names[name], *command], {"PYTHONUNBUFFERED": "1", **env})
        self.processes.append(process)
        return process

    def start_switch(self) -> Process:
        command = [sys.executable, "-P", "-m", "jax_passing.cli", "switch", "--listen", "0.0.0.0:7171", "--verbose"]
        switch = self.start("switch", command, {})
        switch.wait_for("listening on", 30)
        return switch

    def start_hosts(self, program: str, *arguments: str, **env: str) -> list[Process]:
        return [
            self.start(
                str(rank),
                [sys.executable, str(PROGRAMS / program), *arguments],
                {
                    "JAX_PASSING_SWITCH": f"{NETWORK}.1:7171",
                    "JAX_PASSING_JOB": program,
                    "JAX_PASSING_RANK": str(rank),
                    "JAX_PASSING_WORLD_SIZE": str(HOSTS),
                    "JAX_NUM_CPU_DEVICES": "1",
                    "JAX_PLATFORMS": "cpu",
                    **env,
                },
            )
            for rank in range(HOSTS)
        ]

    def remove(self) -> None:
        for process in self.processes:
            process.stop()
        for name in self.names.values():
            if Path("/run/netns", name).exists():
                self.ip("netns", "delete", name)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.build()
        yield network
    finally:
        network.remove()


def _counters(switch: Process) -> dict[str, int]:
    """Ends the switch, which then tells what it counted."""
    switch.popen.terminate()
    assert switch.wait(20) == 0, switch.text
    last = switch.wait_for("^shut down: (.*)", 1)[1]
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", last)}


def _sum(network: Network) -> tuple[str, str, dict[str, int]]:
    """Sums of every kind, checked by the hosts: the digest of their bits, the switch's log, its counters."""
    switch = network.start_switch()
    hosts = network.start_hosts("sums.py")
    for host in hosts:
        assert host.wait(200) == 0, host.text
    (digest,) = {host.wait_for(r"^digest (\w+)", 1)[1] for host in hosts}
    return digest, switch.text, _counters(switch)


def test_by_multicast_where_all_hear_it_else_by_unicast_and_the_same_bits(network: Network) -> None:
    digest, log, counters = _sum(network)
    assert "results by multicast to 239." in log
    assert counters["results_multicast"] == counters["complete"]
    assert counters["packets_sent"] == counters["complete"] + counters.get("resend", 0)

    network.carry_multicast(1, False)
    other_digest, log, counters = _sum(network)
    assert re.search(r"each member is sent its own results: the group 239\.\S+ doesn't reach rank 1\n", log)
    assert "results by unicast" in log
    assert "results_multicast" not in counters
    assert counters["packets_sent"] == HOSTS * counters["complete"] + counters.get("resend", 0)
    assert digest == other_digest


def test_a_network_that_stops_carrying_multicast(network: Network) -> None:
    switch = network.start_switch()
    hosts = network.start_hosts("steps.py")
    hosts[2].wait_for("^step 100$", 60)
    network.carry_multicast(2, False)
    switch.wait_for("rank [0-2] no longer hears the multicast group", 30)
    later = 100 * (len(hosts[2].lines) + 5)
    hosts[2].wait_for(f"^step {later}$", 60)  # wrong sums end it
    for host in hosts:
        assert host.popen.poll() is None, host.text
        host.stop()
    counters = _counters(switch)
    assert counters["groups_lost"] == 1
    assert counters["packets_sent"] > counters["complete"] + HOSTS * 100
