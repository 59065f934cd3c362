"""The data plane in the kernel is a tc program at the ingress of the switch's ports (xla_ffi/ebpf)."""

import ipaddress
import logging
import os
import re
import socket
import struct
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from importlib import resources
from pathlib import Path

from jax_passing import _native
from jax_passing.errors import ConfigError
from jax_passing.protocol import verdicts
from jax_passing.protocol.link_rate import one_card
from jax_passing.protocol.packet import LANES_AT_MTU_1500, WORKERS_MAX
from jax_passing.settings_parser import is_power_of_two
from jax_passing.switch.data_planes import libbpf
from jax_passing.switch.data_planes.data_plane import (
    DataPlaneError,
    JobSlots,
    MulticastGroup,
    SlotVersion,
    group_of,
)
from jax_passing.switch.data_planes.results_sender import ResultsSender

log = logging.getLogger("jax_passing.switch")

OBJECT = Path(str(resources.files(__package__) / "switch.bpf.o"))  # not beside the sources in an editable install

# These are laid out as in xla_ffi/ebpf: struct job with its workers, struct slot_version, struct counters.
_JOB = struct.Struct("=IIIII4sH6x")
_WORKER = struct.Struct("=4sHxx48x")
_JOB_BYTES = _JOB.size + WORKERS_MAX * _WORKER.size
_SLOT = struct.Struct("=IHHQQIBBBBH6x")
_NO_GROUP = ("0.0.0.0", 0)
_SLOT_BYTES = _SLOT.size + 4 * LANES_AT_MTU_1500
VERDICTS = verdicts.VERDICTS[: verdicts.VERDICTS.index("forwarded")]  # it has no parent
_CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_NET_ADMIN": 12}  # linux/capability.h
_COUNTERS = (
    *("packets_received", "bytes_received", "packets_sent", "bytes_sent", "results_multicast"),
    *("packets_unsent", "results_handed_up"),
    *VERDICTS,
)


def _index(device: str) -> int:
    """Returns the index of a network device, 0 if there is none of this name."""
    with suppress(OSError):
        return socket.if_nametoindex(device)
    return 0


class EbpfDataPlane:
    """Sums the packets that arrive at `devices` for `host`:`port`, and sends results out of the same devices.

    `multicast`: where all hosts are behind one device, they may hear results from a group.

    Raises ConfigError if this machine, its kernel or this installation can't, and OSError if the port is taken.
    """

    host = ""
    whole_chunks = False
    planes = 1
    takes_bare = False
    can_tag = False
    worker_limit = WORKERS_MAX

    def __init__(
        self,
        host: str,
        port: int,
        devices: Sequence[str],
        *,
        slot_total: int,
        lanes_per_chunk: int,
        multicast: bool = True,
    ):
        self.slot_total = slot_total
        self.lanes_per_chunk = min(lanes_per_chunk, LANES_AT_MTU_1500)  # the program knows no longer packets
        self._jobs: dict[int, range] = {}  # and their slots
        own = _own_address(host)
        indices = {name: _index(name) for name in devices}
        for name, index in indices.items():
            if index == 0:
                known = ", ".join(known for _, known in socket.if_nameindex())
                raise ConfigError(f"No network device {name!r} here; there are {known} (--device).")
        self._multicast = multicast and len(indices) == 1
        self._links: dict[str, int | None] = {}  # of the devices; None: it is gone
        if not OBJECT.exists():
            raise ConfigError(
                "This installation of jax_passing has no eBPF program: it was built without clang. Install that "
                "(apt-get install clang libbpf-dev), then build and install the package again."
            )
        self._sender = ResultsSender(host, port)
        self.port = self._sender.port
        self._program: libbpf.BpfProgram | None = None
        self._handed_up: libbpf.RingReader | None = None
        try:
            self._program = load(struct.pack("=4sHxx", own.packed, socket.htons(self.port)), slot_total)
            self._handed_up = libbpf.RingReader(self._program.map("handed_up"), self._sender.send)
            for name, index in indices.items():
                try:
                    self._links[name] = self._program.attach_to_ingress(index)
                except OSError as error:
                    raise ConfigError(
                        f"The kernel attaches no eBPF program to {name}: {error}. This needs Linux 6.6 or newer (tcx); "
                        f"here runs {os.uname().release}."
                    ) from error
        except BaseException:
            self.close()
            raise
        self._job_map = self._program.map("jobs")
        self._slots = self._program.map("slots")
        self._completed = self._program.map("completed")
        self._counters = self._program.map("counters")
        assert self._job_map.value_bytes == _JOB_BYTES
        assert self._slots.value_bytes == _SLOT_BYTES
        assert self._counters.value_bytes == 8 * len(_COUNTERS)

    def has_one_port(self, own_addresses: Set[str]) -> bool:
        return one_card(own_addresses)

    def group(self, job: int, own_address: str) -> MulticastGroup | None:
        """Returns a group if all are behind one device, such as a bridge: there the network copies results. Else each
        worker is sent its own."""
        return group_of(job, own_address, self.port) if self._multicast else None

    def socket_to(self, host: str, port: int, planes: int) -> None:
        return None

    def hears_parents_group(self, job: int) -> bool:
        return True  # it has no parent

    def path_nonce(self, host: str) -> int:
        raise NotImplementedError("all paths carry its packets")

    def probe(self, group: MulticastGroup, job: int, epoch: int, nonce: int, lanes: int) -> None:
        burst, size = _native.probe_burst(job=job, epoch=epoch, nonce=nonce, lanes=lanes)
        self._sender.send_packets(burst, size, (group.address, group.port))

    def add_job(self, job: JobSlots) -> None:
        """Adds a job. Raises DataPlaneError while one of the devices is gone: whether its hosts are the job's can't be
        told.

        And ValueError if the slots leave the switch or overlap another job's, or if addresses aren't IPv4.
        """
        if trouble := self.trouble():
            raise DataPlaneError(
                f"the device was lost: {trouble}. Bring it back, or restart this switch with others (--device)"
            )
        if job.parent is not None:
            raise ValueError("the eBPF data plane has no parent: let its hosts join the root of the tree")
        if not 1 <= len(job.addresses) <= WORKERS_MAX:
            raise ValueError(f"a job has 1 to {WORKERS_MAX} workers")
        if not is_power_of_two(job.slot_count):
            raise ValueError("a job's slot count is a power of two")
        if not 0 <= job.slot_first <= self.slot_total - job.slot_count:
            raise ValueError("the job's slots leave the switch")
        slots = range(job.slot_first, job.slot_first + job.slot_count)
        for number, held in self._jobs.items():
            if number != job.job and slots.start < held.stop and held.start < slots.stop:
                raise ValueError("the job's slots overlap another job's")
        workers = [_WORKER.pack(*_packed(address)) for address in job.addresses]
        group = (job.group.address, job.group.port) if job.group else None
        numbers = job.epoch, job.slot_first, job.slot_count, job.reach, len(workers)
        head = _JOB.pack(*numbers, *_packed(group or _NO_GROUP))

        self.remove_job(job.job)
        everybody = (1 << len(workers)) - 1
        empty = _SLOT.pack(0, job.job, job.epoch, everybody, 0, 0, 0, 0, 0, 0, 0).ljust(_SLOT_BYTES, b"\0")
        self._slots.write_locked(2 * job.slot_first, [empty] * (2 * job.slot_count))
        self._completed.write(job.slot_first, bytes(4))  # sequences begin at 0
        self._job_map.write(job.job, (head + b"".join(workers)).ljust(_JOB_BYTES, b"\0"))
        self._jobs[job.job] = slots
        self._sender.routes[job.job] = (job.addresses, group)

    def stop_multicast(self, job: int) -> None:
        workers, _ = self._sender.routes[job]
        self._sender.routes[job] = (workers, None)
        value = self._job_map.read(job)
        *head, _, _ = _JOB.unpack_from(value)
        # A packet teaches the program about its sender. That is lost in between; its next packet does so again.
        self._job_map.write(job, _JOB.pack(*head, *_packed(_NO_GROUP)) + value[_JOB.size :])

    def remove_job(self, job: int) -> None:
        self._job_map.remove(job)
        self._jobs.pop(job, None)
        self._sender.routes.pop(job, None)

    def slot_version(self, slot: int, version: int, plane: int = 0) -> SlotVersion:
        value = self._slots.read(2 * slot + version, locked=True)
        _, _, _, _, bitmap, sequence, held, complete, *_ = _SLOT.unpack_from(value)
        return SlotVersion(not held, sequence, bitmap, bool(complete)) if held else SlotVersion(True, 0, 0, False)

    def check(self) -> str:
        """The kernel loses nothing, but devices may go, and come back as others.

        Raises OSError if one of these doesn't take the program.
        """
        assert self._program is not None
        lost = []
        for name, link in self._links.items():
            index = _index(name)
            if link is not None and (index == 0 or self._program.device_of(link) != index):
                lost.append(f"the network device {name} " + ("was replaced" if index else "is gone"))
                log.warning("%s: no packets are taken from it", lost[-1])
                self._links[name] = None
                self._program.detach(link)
        for name, link in self._links.items():
            if link is None and (index := _index(name)):
                self._links[name] = self._program.attach_to_ingress(index)
                log.warning("packets are taken from the network device %s again", name)
        return ", and ".join(lost)

    def trouble(self) -> str:
        lost = [name for name, link in self._links.items() if link is None]
        return f"no packets are taken from {', '.join(lost)}" if lost else ""

    def overflows(self) -> Mapping[int, int]:
        return {}

    def counts(self, job: int) -> None:
        return None

    def stats(self) -> Mapping[str, int]:
        assert self._program is not None
        copies = self._program.processors
        numbers = struct.unpack(f"={copies * len(_COUNTERS)}Q", self._counters.read(0, copies=copies))
        counts = {name: sum(numbers[i :: len(_COUNTERS)]) for i, name in enumerate(_COUNTERS)}
        for name in ("packets_sent", "bytes_sent", "results_multicast", "packets_unsent"):
            counts[name] += getattr(self._sender, name)
        return counts

    def close(self) -> None:
        if self._handed_up is not None:
            self._handed_up.close()
        if self._program is not None:
            self._program.close()
        self._sender.close()


def _packed(address: tuple[str, int]) -> tuple[bytes, int]:
    """Returns both in network order. Raises ValueError if it isn't IPv4."""
    host, port = address
    return ipaddress.IPv4Address(host).packed, socket.htons(port)


def _own_address(host: str) -> ipaddress.IPv4Address:
    with suppress(ValueError):
        own = ipaddress.IPv4Address(host)
        if not own.is_unspecified:
            return own
    raise ConfigError(
        f"The eBPF data plane takes the packets of one IPv4 address, not of {host!r}: say which one, as in "
        "--listen 10.0.0.1:7171."
    )


def _lacking() -> list[str]:
    """Returns the capabilities that this process should have, and hasn't."""
    (held,) = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return [name for name, bit in _CAPABILITIES.items() if not int(held, 16) >> bit & 1]


def load(constants: bytes, slot_total: int) -> libbpf.BpfProgram:
    """Returns the program in the kernel, attached to nothing yet; `constants` as in its `own`. Raises ConfigError."""
    try:
        entries = {"slots": 2 * slot_total, "completed": slot_total, "scratches": libbpf.possible_processors()}
        return libbpf.BpfProgram(OBJECT, "passing_switch", constants=constants, max_entries=entries)
    except OSError as error:
        lacking = _lacking()
        # The kernel may call it something else: without CAP_PERFMON its verifier says "Bad address", and pages more.
        if isinstance(error, PermissionError) or (error.errno and lacking):
            why = f"this process lacks {' and '.join(lacking)}" if lacking else str(error)
            raise ConfigError(
                f"No eBPF program may be loaded here: {why}. Run the switch as root, or with "
                f"{', '.join(_CAPABILITIES)} (setpriv, or AmbientCapabilities of a systemd unit)."
            ) from error
        raise ConfigError(
            f"The eBPF program can't be loaded: {error}. It needs libbpf 1 (apt-get install libbpf1) and Linux 6.6 or "
            f"newer; here runs {os.uname().release}."
        ) from error
