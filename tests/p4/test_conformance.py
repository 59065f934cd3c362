"""The program in bmv2 against the reference model: every rule, each verdict, frame by frame."""

import struct
import time

import pytest

from jax_passing.conformance.exchanges import golden, limit_cases, random_exchanges, reach_cases
from jax_passing.conformance.exchanges.differences import difference, state_difference
from jax_passing.conformance.exchanges.exchange import Exchange, Played, final_states
from jax_passing.conformance.exchanges.model import Limits, State
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent
from jax_passing.switch.data_planes.reach import REACH_MAX
from support.net.frames import ARP, BROADCAST, IPV4, UDP, arp, ethernet, ipv4, mac, udp
from support.p4.device import PORTS, Switch
from support.p4.network import HOSTS

FIRST_PORT = 1024  # UDP
NO_MAC = "00:00:00:00:00:00"


class Bmv2Device:
    """Plays exchanges. Its addresses are hosts in turn at all ports."""

    name = "p4/v1model in bmv2"

    def __init__(self, switch: Switch, reach: int | None = None):
        self._switch = switch
        self.limits = Limits(lanes_per_chunk=switch.lanes, whole_chunks=True, reach=reach)

    def play(self, exchange: Exchange) -> Played:
        data_plane = self._switch.data_plane
        hosts = {name: host for host, name in enumerate(exchange.addresses())}
        addresses = {name: (HOSTS[host][1], FIRST_PORT + host) for name, host in hosts.items()}
        for job in exchange.jobs:
            workers = tuple(addresses[str(worker)] for worker in job.workers)
            above = job.parent and Parent(
                job.parent.job,
                job.parent.epoch,
                job.parent.slot_first,
                job.parent.worker,
                addresses[str(job.parent.address)],
            )
            numbers = job.number, job.epoch, job.slot_first, job.slot_count
            reach = REACH_MAX if self.limits.reach is None else self.limits.reach
            data_plane.add_job(JobSlots(*numbers, workers, parent=above or None, reach=reach))
        verdicts = [self._send(hosts[step.source], step.packet) for step in exchange.steps]
        received = self._received({address: name for name, address in addresses.items()})
        states = {}
        for slot, version in final_states(exchange, self.limits):
            held = data_plane.slot_version(slot, version)
            states[slot, version] = State(held.empty, held.sequence, held.bitmap, held.complete)
        for job in exchange.jobs:
            data_plane.remove_job(job.number)
        return Played(received, verdicts=verdicts, states=states)

    def _send(self, host: int, data: bytes) -> str:
        switch = self._switch
        host_mac, ip = HOSTS[host]
        packet = ipv4(ip, switch.ip, UDP, udp(FIRST_PORT + host, switch.udp_port, data))
        before = switch.data_plane.stats()
        switch.ports[host % PORTS].send(ethernet(host_mac, switch.mac, IPV4, packet))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            after = switch.data_plane.stats()
            if changed := [name for name, count in after.items() if count != before[name]]:
                return " and ".join(changed)
        return "nothing"

    def _received(self, names: dict[tuple[str, int], str]) -> dict[str, list[bytes]]:
        """Returns what waits at the ports; an answer to ARP comes behind it."""
        switch = self._switch
        received: dict[str, list[bytes]] = {}
        for number, port in enumerate(switch.ports):
            host_mac, ip = HOSTS[number]
            port.send(ethernet(host_mac, BROADCAST, ARP, arp(1, (host_mac, ip), (NO_MAC, switch.ip))))
            while (frame := port.receive()) is not None and frame[12:14] != struct.pack("!H", ARP):
                udp_port, udp_bytes = struct.unpack("!HH", frame[36:40])
                host = udp_port - FIRST_PORT
                assert host % PORTS == number
                assert frame[:12] == mac(HOSTS[host][0]) + mac(switch.mac)
                assert frame[14:34] == ipv4(switch.ip, HOSTS[host][1], UDP, bytes(len(frame) - 34))[:20]
                assert udp_bytes == len(frame) - 34
                received.setdefault(names[HOSTS[host][1], udp_port], []).append(frame[42:])
            assert frame is not None
        return received


@pytest.fixture(scope="module")
def device(switch):
    return Bmv2Device(switch)


def conforms(device, exchange):
    if reason := exchange.not_applicable(device.limits):
        pytest.skip(reason)
    fitted = exchange.fitted(device.limits)
    played = device.play(fitted)
    assert difference(fitted, played) == ""
    assert state_difference(fitted, final_states(fitted, device.limits), played) == ""


@pytest.mark.parametrize("case", golden.read(), ids=lambda case: f"{case.section}: {case.description}")
def test_golden(device, case):
    conforms(device, case)


def test_limits(device):
    for case in limit_cases.cases(device.limits):
        conforms(device, case)


@pytest.mark.parametrize("reach", [64, 1 << 30])  # by leaps of the latter sequences wrap
def test_reach(switch, reach):
    device = Bmv2Device(switch, reach)
    for case in reach_cases.cases(device.limits):
        conforms(device, case)
    for seed in range(3):
        conforms(device, random_exchanges.exchange(seed, device.limits))


@pytest.mark.parametrize("seed", range(10))
def test_random(device, seed):
    conforms(device, random_exchanges.exchange(seed, device.limits))
