"""The P4 program of p4/ is a data plane: this fills its tables about jobs, workers and the way to them."""

import logging
import secrets
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass

from jax_passing.protocol.packet import WORKERS_MAX
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.data_plane import JobSlots, MulticastGroup, SlotVersion, unexpected
from jax_passing.switch.data_planes.device import Device, Neighbour, ip_number, mac_number
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry, Pipeline, UnreadableError

log = logging.getLogger("jax_passing.switch")

JOBS_MAX = 1024  # p4/types.p4
ALL_PORTS = 1  # the multicast group to which the program floods
GROUP_MAX = 0xFFFF
OWNER_MAX = 0xFFFFFFFF
NEIGHBOURS = 4096  # cells of the registers in which the program notes them
CHECK_S = 0.5
CHECK_AGAIN_S = 5.0  # while it can't be reached: a try may take seconds, and hosts that leave have to be heard


@dataclass(frozen=True)
class _Added:
    """This is a job in the tables."""

    slots: JobSlots
    owner: int
    group: int
    entries: tuple[Entry, ...]  # in the order of insertion: the first packet is taken when the last one stands


class P4DataPlane:
    """This device runs the program of p4/; see data_plane.DataPlane. Raises DeviceError if it can't be reached."""

    whole_chunks = True
    planes = 1
    takes_bare = True
    can_tag = False
    worker_limit = WORKERS_MAX
    newest_register = "lanes.bare"  # programs without it are too old for this control plane

    def __init__(self, device: Device, pipeline: Pipeline):
        self._device = device
        self._pipeline = pipeline
        self.host = device.address
        self.port = device.udp_port
        self._jobs: dict[int, _Added] = {}
        # Slots remember their owners' numbers, perhaps those of a control plane before this one.
        self._owner = secrets.randbelow(OWNER_MAX)
        self._problem = ""  # why the device has to be taken over anew
        self._next_check = 0.0
        self._stats = dict.fromkeys(VERDICTS, 0)
        self.lanes_per_chunk = pipeline.lanes  # this and slots: hosts are told them for good
        self.slot_total = pipeline.register_cells // 2
        self._attach()

    def _attach(self) -> None:
        device, pipeline = self._device, self._pipeline
        pipeline.attach()
        lanes, slots = pipeline.lanes, pipeline.register_cells // 2
        if (lanes, slots) != (self.lanes_per_chunk, self.slot_total):
            raise DeviceError(
                f"it runs another build of the program, with {lanes} lanes and {slots} slots instead of "
                f"{self.lanes_per_chunk} and {self.slot_total}: load the first one again, or restart this switch"
            )
        if (cells := len(pipeline.counter("verdicts"))) != len(VERDICTS):
            raise DeviceError(
                f"its program is of another version of jax_passing: it counts {cells} verdicts instead of "
                f"{len(VERDICTS)}. Compile that of this version, and load it"
            )
        with suppress(UnreadableError):  # DeviceError if the program has none; a server that can't read doesn't tell
            pipeline.register(self.newest_register, 0)
        pipeline.insert_group(ALL_PORTS, [(port, 0) for port in device.ports])
        for mac, port in {mac_number(known.mac): known.port for known in device.neighbours}.items():
            pipeline.insert(Entry("forward", {"mac": mac}, "to_port", {"port": port}))
        for entry in self._own_entries():
            pipeline.insert(entry)
        self._problem = ""

    def _own_entries(self) -> list[Entry]:
        own = {"mac": mac_number(self._device.mac)}
        return [Entry("own_address", {"ip": ip_number(self._device.address)}, "set_own_mac", own)]

    def has_one_port(self, own_addresses: Set[str]) -> bool:
        return False

    def group(self, job: int, own_address: str) -> MulticastGroup | None:
        return None

    def socket_to(self, host: str, port: int, planes: int) -> None:
        return None

    def path_nonce(self, host: str) -> int:
        raise NotImplementedError("its program says how long packets are")

    def probe(self, group: MulticastGroup, job: int, epoch: int, nonce: int, lanes: int) -> None:
        raise NotImplementedError("each copy of a result is addressed to its worker: there is no group to probe")

    def stop_multicast(self, job: int) -> None:
        pass

    def hears_parents_group(self, job: int) -> bool:
        return True

    def add_job(self, job: JobSlots) -> None:
        """Adds all of a job or nothing. Raises DeviceError if the device refuses it, or if a worker's way in the
        network isn't known."""
        if self._problem:
            raise DeviceError(f"the device was lost: {self._problem}")
        self._pipeline.check_control()
        assert job.job not in self._jobs, job
        if len(self._jobs) == JOBS_MAX:
            raise DeviceError(f"its tables have room for {JOBS_MAX} jobs, which are running: wait for one to end")
        self._owner = self._owner % OWNER_MAX + 1
        taken = {added.group for added in self._jobs.values()}
        group = next(number for number in range(ALL_PORTS + 1, GROUP_MAX + 1) if number not in taken)
        ways = [self._neighbour(address) for address, _ in job.addresses]
        added = _Added(job, self._owner, group, tuple(self._entries(job, ways, group)))
        entered: list[Entry] = []
        try:
            self._pipeline.insert_group(group, [(way.port, worker) for worker, way in enumerate(ways)])
            for entry in added.entries:
                entered.append(entry)
                self._pipeline.insert(entry)
        except Exception:
            self._take_back(group, entered)
            raise
        self._jobs[job.job] = added

    def _take_back(self, group: int, entered: list[Entry]) -> None:
        """Takes rows back where the last one of `entered`, or else the group, failed: the device doesn't have it, or
        not for sure."""
        try:
            for entry in reversed(entered[:-1]):
                self._pipeline.delete(entry)
            self._pipeline.delete_group(group)
            if entered:
                table = entered[-1].table
                rows = [entry for added in self._jobs.values() for entry in added.entries if entry.table == table]
                if (held := self._pipeline.entry_count(table)) != len(rows):
                    raise DeviceError(f"its table {table} has {held} rows instead of {len(rows)}")
        except Exception as error:
            log.error("a job that failed can't be taken back: %s", error, exc_info=unexpected(error))
            self._problem = str(error)  # it is in no state that we know

    def _entries(self, job: JobSlots, ways: list[Neighbour], group: int) -> list[Entry]:
        number = {"job": job.job}
        entries = self._receivers(job, ways)
        for worker, (address, udp_port) in enumerate(job.addresses):
            bit = {"worker_bit": 1 << worker, "ip": ip_number(address), "udp_port": udp_port}
            entries.append(Entry("worker", {**number, "worker": worker}, "set_worker", bit))
        if job.parent is not None:
            entries += self._parent_entries(job)
        workers = (1 << len(job.addresses)) - 1
        share = {"slot_first": job.slot_first, "slot_count": job.slot_count}
        numbers = {
            "epoch": job.epoch,
            "owner": self._owner,
            **share,
            "workers": workers,
            "group": group,
            "reach": job.reach,
        }
        return [*entries, Entry("job", number, "set_job", numbers)]

    def _receivers(self, job: JobSlots, ways: list[Neighbour]) -> list[Entry]:
        entries = []
        for worker, ((_, udp_port), way) in enumerate(zip(job.addresses, ways, strict=True)):
            receiver = {"mac": mac_number(way.mac), "ip": ip_number(way.address), "udp_port": udp_port}
            entries.append(Entry("receiver", {"job": job.job, "worker": worker}, "to_worker", receiver))
        return entries

    def _parent_entries(self, job: JobSlots) -> list[Entry]:
        parent = job.parent
        assert parent is not None
        address, udp_port = parent.address
        way = self._neighbour(address)
        numbers = {"job": parent.job, "epoch": parent.epoch, "worker": parent.worker, "slot_first": parent.slot_first}
        receiver = {"mac": mac_number(way.mac), "ip": ip_number(way.address), "udp_port": udp_port, "port": way.port}
        return [
            Entry("parent_job", {"job": parent.job}, "set_own_job", {"job": job.job}),
            Entry("parent", {"job": job.job}, "set_parent", numbers | receiver),
        ]

    def _neighbour(self, address: str) -> Neighbour:
        """Returns a neighbour as the file says, else as the program has seen it."""
        for known in self._device.neighbours:
            if known.address == address:
                return known
        return self._seen(address)

    def _seen(self, address: str) -> Neighbour:
        """Returns a host that isn't listed. Raises DeviceError if the program doesn't know it."""
        number = ip_number(address)
        cell = number % NEIGHBOURS
        try:
            ip, mac, port = (self._pipeline.register(f"neighbours.{what}", cell) for what in ("ip", "mac", "port"))
        except UnreadableError as error:
            raise DeviceError(
                f"the device's runtime server can't tell where {address} is, so it must be listed among the neighbours "
                f"in the device file ({error})"
            ) from error
        if ip != number:
            raise DeviceError(
                f"the device has seen no packet of {address}: let hosts reach the control plane through the device, or "
                "list it among the neighbours in its file"
            )
        return Neighbour(address, ":".join(f"{byte:02x}" for byte in mac.to_bytes(6, "big")), port)

    def remove_job(self, job: int) -> None:
        added = self._jobs.pop(job, None)
        if added is None or self._problem:
            return  # gone with the device, or soon
        try:
            self._pipeline.check_control()  # another's rows aren't ours to delete
            for entry in reversed(added.entries):
                self._pipeline.delete(entry)
            self._pipeline.delete_group(added.group)
        except DeviceError as error:
            self._problem = str(error)
            raise

    def _job_of(self, slot: int) -> JobSlots | None:
        jobs = (added.slots for added in self._jobs.values())
        return next((job for job in jobs if 0 <= slot - job.slot_first < job.slot_count), None)

    def slot_version(self, slot: int, version: int, plane: int = 0) -> SlotVersion | None:
        try:
            return self._slot_version(slot, version)
        except UnreadableError:
            return None

    def _slot_version(self, slot: int, version: int) -> SlotVersion:
        index = 2 * slot + version
        job = self._job_of(slot)
        if job is None or self._pipeline.register("slot_check.owner", index) != self._jobs[job.job].owner:
            return SlotVersion(empty=True, sequence=0, bitmap=0, complete=False)
        parts = ("sequence", "bitmap_low", "bitmap_high")
        sequence, low, high = (self._pipeline.register(f"slot_check.{part}", index) for part in parts)
        bitmap = high << 32 | low
        complete = bitmap == (1 << len(job.addresses)) - 1
        if complete and job.parent is not None:
            complete = self._pipeline.register("slot_check.answered", index) == 1
        return SlotVersion(empty=False, sequence=sequence, bitmap=bitmap, complete=complete)

    def check(self) -> str:
        now = time.monotonic()
        if now < self._next_check:
            return ""
        self._next_check = now + CHECK_S
        try:
            if not self._problem:
                self._pipeline.check_control()
                if self._pipeline.entry_count("own_address") == 0:
                    self._problem = "its tables are empty: it was restarted"
        except DeviceError as error:
            self._problem = str(error)
        if not (problem := self._problem):
            return ""
        lost = bool(self._jobs)
        self._jobs.clear()
        try:
            self._attach()
        except DeviceError as error:
            if str(error) != self._problem:
                log.warning("can't serve the device at %s: %s", self._device.runtime, error)
            self._problem = str(error)
            self._next_check = time.monotonic() + CHECK_AGAIN_S
        else:
            log.warning("the device at %s is served again after this: %s", self._device.runtime, problem)
        return problem if lost else ""

    def trouble(self) -> str:
        return self._problem

    def overflows(self) -> Mapping[int, int]:
        return {}

    def counts(self, job: int) -> None:
        return None

    def stats(self) -> Mapping[str, int]:
        """Returns counts by verdict; the last known if the device doesn't answer, or counts another control plane's
        packets."""
        try:
            if self._problem:
                raise DeviceError(self._problem)
            self._pipeline.check_control()
            self._stats = dict(zip(VERDICTS, self._pipeline.counter("verdicts"), strict=True))
        except DeviceError as error:
            log.warning("no counters: %s", error)
        return self._stats

    def close(self) -> None:
        self._pipeline.close()
