"""Switches: the shipped control plane in front of the shipped SwitchCore, in a simulated world."""

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Address
from weakref import WeakValueDictionary, finalize

from jax_passing.protocol.keys import KEY_BYTES, pair_of_plane
from jax_passing.protocol.packet import LANES_AT_MTU_1500, WORKERS_MAX
from jax_passing.switch.data_planes.data_plane import DataPlane, DataPlaneError, SlotVersion, group_of
from jax_passing.switch.data_planes.software import keys_of_plane
from jax_passing.switch.server.control_plane import ControlPlane
from jax_passing.switch.server.settings import SwitchSettings
from simulation.plan import Plan, Switch
from simulation.world import Machine, Process, World

PORT = 7171  # for connections and packets
LEASE_S = 1.5
NONCE = 7  # of probes of paths
EPOCHS_KNOWN_MAX = 1000  # some of them are over, but not all hosts know it yet


def endpoint(address: tuple[str, int]) -> tuple[int, int]:
    """As _simulation has it."""
    return int(IPv4Address(address[0])), address[1]


def address_of(switch: int) -> tuple[str, int]:
    return f"10.0.0.{switch + 1}", PORT


def switch_key(number: int) -> bytes | None:
    return number.to_bytes(KEY_BYTES) if number else None


class SimulatedSocket:
    """UDP sockets of one port that are connected to the planes of a switch, as PlaneSockets.

    Attributes:
      planes: their numbers.
    """

    def __init__(self, process: Process, address: tuple[str, int], planes: int):
        self._machine = process.machine
        self._packets = process.world.packets
        self._is_probed = False
        self.port = self._machine.take_port()
        own, (host, port) = (self._machine.number, self.port), address
        self.planes = [self._packets.open(own, endpoint((host, port + plane))) for plane in range(planes)]
        self.close = finalize(self, self._close, self._machine, self._packets, self.planes, self.port)
        self.close.atexit = False

    @staticmethod
    def _close(machine, packets, planes, port):
        for number in planes:
            packets.close(number)
        machine.free_port(port)

    def join_group(self, address, port, *, job, epoch, nonce):
        for number in self.planes:
            self._packets.join_group(number, endpoint((address, port)), job=job, epoch=epoch, nonce=nonce)

    def hears_group(self):
        return all(self._packets.hears_group(number) for number in self.planes)

    def lanes_that_fit(self):
        return self._machine.lanes_that_fit

    def probe_path(self, nonce, lanes):
        self._is_probed = self._machine.passes_what_fits

    def hears_path(self, nonce, lanes):
        return self._is_probed and nonce == NONCE

    def leave_group(self):
        for number in self.planes:
            self._packets.leave_group(number)


class SimulatedDataPlane:
    """As SoftwareDataPlane.

    Attributes:
      running: the jobs, by number.
      incarnation_of: of each of them, and of those that were last: hosts of one incarnation add up with each other.
    """

    host, port, worker_limit = "", PORT, WORKERS_MAX

    def __init__(self, process: "SimulatedSwitch", plan: Switch, of_all: Plan, incarnation: Callable):
        self._process = process
        self._incarnation = incarnation
        self._world = process.world
        self._packets = process.world.packets
        self._multicast, self._has_one_port = plan.multicast, plan.has_one_port
        self._refuses, self._first_position = of_all.refuses, of_all.first_position
        self.can_tag = plan.tags
        self.planes = plan.threads
        self.slot_total, self.lanes_per_chunk = plan.slot_total // plan.threads, plan.lanes_per_chunk
        self.whole_chunks, self.takes_bare = plan.whole_chunks, plan.takes_bare
        self._numbers = [
            self._packets.add_switch(
                (process.machine.number, PORT + plane),
                slot_count=self.slot_total,
                whole_lanes=plan.lanes_per_chunk if plan.whole_chunks else 0,
            )
            for plane in range(plan.threads)
        ]
        self.running = {}
        self.incarnation_of = {}
        self._sockets = (
            WeakValueDictionary()
        )  # to parents, by their first number; one that nobody holds any more is closed
        self.lost = ""

    def has_one_port(self, own_addresses):
        return self._has_one_port

    def group(self, job, own_address):
        return group_of(job, own_address, PORT) if self._multicast else None

    def socket_to(self, host, port, planes):
        socket = SimulatedSocket(self._process, (host, port), min(planes, self.planes))
        self._sockets[socket.planes[0]] = socket
        return socket

    def path_nonce(self, host):
        return NONCE

    def probe(self, group, job, epoch, nonce, lanes):
        for number in self._numbers:
            to = endpoint((group.address, group.port))
            self._packets.probe(number, to, job=job, epoch=epoch, nonce=nonce, lanes=lanes)

    def add_job(self, job):
        if self._world.happens(self._refuses):
            raise DataPlaneError("no table space")
        for plane, number in enumerate(self._numbers[: job.planes]):
            self._add(number, plane, job)
        self.running[job.job] = job
        self.incarnation_of[job.job, job.epoch] = self._incarnation(job.parent)
        if len(self.incarnation_of) > EPOCHS_KNOWN_MAX:
            del self.incarnation_of[next(iter(self.incarnation_of))]

    def _add(self, number, plane, job):
        parent, above = job.parent, None
        if parent is not None:
            numbers = parent.job, parent.epoch, parent.slot_first, parent.worker
            above = *numbers, parent.socket.planes[plane], pair_of_plane(parent.keys, plane)
        self._packets.add_job(
            number,
            job=job.job,
            epoch=job.epoch,
            slot_first=job.slot_first,
            slot_count=job.slot_count,
            workers=[endpoint(address) for address in job.addresses],
            group=None if job.group is None else endpoint((job.group.address, job.group.port)),
            parent=above,
            keys=None if job.keys is None else keys_of_plane(job.keys, plane),
            first_position=self._first_position,
            reach=job.reach,
            lanes_per_chunk=job.lanes_per_chunk,
        )

    def remove_job(self, job):
        if job not in self.running:  # the device has lost it
            return
        slots = self.running.pop(job)
        for number in self._numbers[: slots.planes]:
            self._packets.remove_job(number, job)
        if slots.parent is not None:
            slots.parent.socket.close()

    def stop_multicast(self, job):
        for number in self._numbers[: self.running[job].planes]:
            self._packets.stop_multicast(number, job)

    def hears_parents_group(self, job):
        planes = self._numbers[: self.running[job].planes]
        return all(self._packets.hears_parents_group(number, job) for number in planes)

    def slot_version(self, slot, version, plane):
        return SlotVersion(*self._packets.slot_version(self._numbers[plane], slot, version))

    def check(self):
        lost, self.lost = self.lost, ""
        return lost

    def forget_all(self):
        """As a device that is restarted."""
        for job in list(self.running):
            self.remove_job(job)
        self.lost = "its tables are empty"

    def trouble(self):
        return ""

    def overflows(self):
        """None: a packet is handled the moment that it arrives."""
        return dict.fromkeys([0, *self.running], 0)

    def counts(self, job):
        return None

    def stats(self):
        return sum((Counter(self._packets.stats(number)) for number in self._numbers), Counter())

    def close(self):
        for number in self._numbers:
            self._packets.remove_switch(number)
        for socket in list(self._sockets.values()):
            socket.close()


class SimulatedSwitch(Process):
    """One life of a switch's process; what the control plane needs of the world (`outside`)."""

    def __init__(self, machine: "SwitchMachine"):
        super().__init__(machine.world, machine)
        self.address = machine.address
        self.data_plane = machine.make_data_plane(self)
        self.plane = ControlPlane(
            self.data_plane,
            self,
            SwitchSettings(lease_s=machine.lease_s, slots_per_job=machine.slots_per_job, parent=machine.parent),
            machine.switch_key,
        )
        self.world.listeners[self.address] = self

    def random_bits(self, count):
        return self.world.random.getrandbits(count)

    def connect(self, address, timeout_s, conversation, job, key):
        self.world.connect(self, address, timeout_s, conversation, job, key)

    def end(self, *, is_noticed=True):
        del self.world.listeners[self.address]
        self.data_plane.close()
        super().end(is_noticed=is_noticed)

    def leftovers(self) -> list[str]:
        """Returns what it still holds; nothing once all jobs are over."""
        left = {
            **self.plane.held(),
            "jobs of the data plane": len(self.data_plane.running),
            "streams": len(self.streams),
            "timers beside the watch": len(self.timers) - 1,
        }
        return [f"{self.machine.host}: {count} {what}" for what, count in left.items() if count]


class SwitchMachine(Machine):
    """A switch may crash, and begin anew at the same address, with nothing in it. `parent`: its number."""

    def __init__(
        self,
        world: World,
        number: int,
        make_data_plane: Callable[[SimulatedSwitch], DataPlane],
        *,
        slots_per_job: int,
        parent: int | None = None,
        switch_key: bytes | None = None,
        lease_s: float = LEASE_S,
        lanes_that_fit: int = LANES_AT_MTU_1500,
        passes_what_fits: bool = True,
    ):
        self.address = address_of(number)
        super().__init__(world, self.address[0])
        self.lanes_that_fit, self.passes_what_fits = lanes_that_fit, passes_what_fits
        self.lease_s = lease_s
        self.make_data_plane, self.slots_per_job, self.switch_key = make_data_plane, slots_per_job, switch_key
        self.parent = None if parent is None else address_of(parent)
        self._dead = None
        self.process = None
        self.begin()

    def begin(self):
        if self.process is not None:
            return
        if self._dead is not None:
            self._dead.reset()
        self.process = SimulatedSwitch(self)

    def go_down(self, *, is_noticed=True):
        if self.process is not None:
            self._dead, self.process = self.process, None
            self._dead.end(is_noticed=is_noticed)

    def crash(self, fault):
        if self.process is not None:
            self.go_down(is_noticed=not fault.silent)
            self.world.call_later(fault.for_s or 0.1, self.begin)

    def forget_all(self):
        if self.process is not None:
            self.process.data_plane.forget_all()
