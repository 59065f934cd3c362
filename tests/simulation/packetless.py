"""A world without packets: control planes in front of data planes that only record what they are asked.

It needs nothing but what is installed.
"""

from jax_passing.switch.data_planes.data_plane import MulticastGroup
from simulation.switches import LEASE_S, SwitchMachine
from simulation.world import World
from support.switch.control import RecordingDataPlane

LINE_DELAY_S = 0.2  # there is nothing faster here that would have to wait for it


class NoPackets:
    """A clock, in place of the packets, where control planes and hosts alone are simulated."""

    def __init__(self):
        self.now_us = 0

    def run(self, until_us):
        self.now_us = until_us
        return []

    def pause(self, machine, until_us): ...

    def block(self, from_machine, to_machine, until_us): ...


class PacketlessDataPlane(RecordingDataPlane):
    """Each job finds another one: it may have a multicast group."""

    def __init__(self, world):
        super().__init__()
        self._world = world

    def group(self, job, own_address):
        self.offered = MulticastGroup("239.192.0.1", 7170, own_address) if self._world.happens(0.5) else None
        return self.offered

    def probe(self, group, job, epoch, nonce, lanes): ...


def packetless_world(seed, line_delay_s=LINE_DELAY_S):
    return World(seed, NoPackets(), line_delay_s=line_delay_s)


def packetless_switch(world, number, lease_s=LEASE_S):
    return SwitchMachine(world, number, lambda _: PacketlessDataPlane(world), slots_per_job=256, lease_s=lease_s)


class NoSocket:
    port = 1000

    def join_group(self, offer, on_heard):
        raise OSError("no such device")

    def leave_group(self): ...

    def close(self): ...


class NoTransport:
    def __init__(self, host):
        self._host = host

    def fail(self, kind, message):
        self._host.on_failed()

    def failure(self):
        return None

    def stats(self):
        return {"sums_started": self._host.sums_started}

    def close(self): ...
