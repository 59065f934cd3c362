"""The C++ side, as Python sees it (nanobind module, sources in xla_ffi/python)."""

from collections.abc import Sequence
from typing import Protocol, TypedDict, final, overload, type_check_only

import numpy as np
from typing_extensions import CapsuleType

@final
class UdpSocket:
    """A UDP socket bound to an unused port, connected to a switch's data port."""

    def __init__(self, switch_host: str, switch_port: int) -> None: ...  # raises OSError
    @property
    def port(self) -> int: ...
    def to_port(self, port: int) -> UdpSocket:
        """Makes another one, from this one's own port to another port of the switch. Raises OSError."""

    def lanes_that_fit(self) -> int:
        """How many lanes a packet with a tag may have, as far as the kernel knows the path. Raises OSError."""

    def probe_path(self, nonce: int, lanes: int) -> None:
        """Sends a probe of the path that nobody may cut: xla_ffi/wire/probe.h."""

    def hears_path(self, nonce: int, lanes: int) -> bool:
        """Takes what has arrived; True if that probe is among it."""

    def join_group(self, address: str, port: int, *, job: int, epoch: int, nonce: int) -> None:
        """Hears, beside its own packets, what the switch sends to an IPv4 multicast group. Raises OSError."""

    def group_fileno(self) -> int: ...
    def hears_group(self) -> bool:
        """Takes what has arrived; True once a whole burst of probes with these numbers has been heard."""

    def leave_group(self) -> None: ...

@final
class Lifeline:
    """Sends an empty line over a connected TCP socket every period, from a thread of its own, until it is destroyed."""

    def __init__(self, fd: int, *, period_us: int) -> None: ...  # takes the socket. Raises OSError

@final
class Stall:
    site_name: str
    execution: int
    step: int
    waits_for_gpu: bool
    waits_for_order: bool
    shard: int
    slot: int
    version: int
    sequence: int

@final
class ProgramInfo:
    name: str
    devices: str  # "0,1": indices among this process's devices, ascending; else the attribute `devices` of its sums
    fingerprint: str  # "" if no two of its sums look alike
    identities: list[str]  # sorted, with repetition

    def __init__(self, *, name: str, devices: str, fingerprint: str, identities: list[str]) -> None: ...

@final
class OrderMessage:
    payload: bytes

    def __init__(self, payload: bytes) -> None: ...

@final
class Stalled:
    stall: Stall
    stalled_s: float

@final
class GroupLost:
    shard: int

@final
class NonFinite:
    """This rank's first element that isn't finite, before any result wasn't."""

    site_name: str
    identity: str  # of the sum; "" if it has none
    execution: int
    step: int
    leaf: int
    element: int  # in the leaf
    what: str  # "NaN", "inf" or "-inf"

@final
class Failure:
    kind: str  # name of an exception in jax_passing.errors
    message: str

@final
class ShardLink:
    """A job at one switch, and the way there. `name` is for messages.

    `worker`: which one we are there. `whole_lanes`: if not 0, this switch takes packets of exactly that length.
    `keys`: of our contributions and of results, if packets have tags; see protocol/keys.py. `bare`: it knows packets
    without lanes.
    """

    def __init__(
        self,
        socket: UdpSocket,
        *,
        job: int,
        epoch: int,
        slot_first: int,
        worker: int,
        whole_lanes: int,
        name: str,
        keys: tuple[bytes, bytes] | None = None,
        bare: bool = False,
    ) -> None: ...

@final
class Transport:
    """One rank's sums over UDP. Takes the shards' sockets, and the groups that they have joined."""

    def __init__(
        self,
        shards: Sequence[ShardLink],
        *,
        job: str,
        rank: int,
        world_size: int,
        slots_per_shard: int,
        lanes_per_chunk: int,
        warn_s: float,
        deadline_s: float,
        check_keys: Sequence[bytes] = (),
        mask_keys: Sequence[bytes] = (),
        seed: int = 0,
        check_nans: bool = False,
        ranks_at_port: int = 1,
        threads: int = 1,
    ) -> None:
        """`threads`: their number divides that of the shards. `check_keys`: one a thread, of CHECK_KEY_BYTES in
        protocol/keys.py, if sums are checked. `mask_keys`: one a thread, of MASK_KEY_BYTES, if sums are confidential.
        `seed`: of random rounding. `check_nans`: a NonFinite is told. `ranks_at_port`: how many ranks reach a switch
        through one port, its own. Raises ValueError."""

    def deliver_order_message(self, message: bytes) -> None: ...
    def note_stall(self, note: str) -> None: ...
    def fail(self, kind: str, message: str) -> None: ...
    def failure(self) -> tuple[str, str] | None: ...
    def wait_event(
        self, timeout_s: float
    ) -> OrderMessage | ProgramInfo | Stalled | GroupLost | NonFinite | Failure | None:
        """The next thing that it asks of its session: xla_ffi/host/rank_core.h. Releases the GIL."""

    def drain(self, timeout_s: float) -> bool: ...  # releases the GIL
    def stats(self) -> dict[str, int]: ...
    def times(self) -> list[tuple[list[int], int]]:
        """By size: how many sums took how long, and how many microseconds all of them took together."""

    def oldest(self) -> tuple[Stall, int] | None:
        """The sum that waits, and was started first, and for how many microseconds."""

    def close(self) -> None: ...  # releases the GIL

SUM_BYTES_MAX: list[int]  # the largest sum of each size; there is one more size
SUM_US_MAX: list[int]  # the longest time of each count; there is one more count

@final
class LocalCollective:
    """The sum over only the local devices: a world of one rank, no switch."""

    def __init__(self) -> None: ...
    def stats(self) -> dict[str, int]: ...

@final
class Rehearsal:
    """Sums over only the local devices that end by themselves: xla_ffi/ffi/rehearsal.h. The last two arguments are what
    sums fail with then."""

    def __init__(self, world_size: int, *, kind: str, message: str) -> None: ...
    def fail(self, kind: str, message: str) -> None: ...
    def failure(self) -> tuple[str, str] | None: ...
    def stats(self) -> dict[str, int]: ...

@overload
def attach(collective: LocalCollective, deadline_s: float, *, rank: int, first_device_id: int) -> None: ...
@overload
def attach(collective: Rehearsal, deadline_s: float, *, first_device_id: int) -> None: ...
@overload
def attach(
    collective: Transport,
    deadline_s: float,
    flat: Sequence[Transport],
    *,
    rank: int,
    first_device_id: int,
) -> None:
    """Makes `collective` the one that handlers of this process use. Raises RuntimeError if one is attached.

    `flat`: a rank of its own for each local device, for the sums of that strategy. `rank`: what `passing_rank` tells.
    `first_device_id`: the smallest id of this process's CPU devices.
    """

def detach() -> None:
    """Undoes attach; calls of handlers fail with UsageError from then on."""

def unfinished_handles() -> dict[str, int]:
    """Counts the handles of sums that aren't finished, by the name of the sum."""

@final
class RecordedSum:
    """A sum of the last session. Times are those of `monotonic_us`."""

    number: int  # among the sums of this process
    site: int
    execution: int
    step: int
    site_name: str  # cut where it is long
    state: str  # "started", "completed" or "failed"
    dtype: str
    op: str  # "sum" or "max"
    bytes: int  # of one device's elements
    elements: int
    world_size: int
    scheduled_us: int  # when the first device came
    started_us: int  # when all had come
    ended_us: int  # 0: it hasn't

def recorded_sums() -> list[RecordedSum]:
    """Returns the last 4,096 at most, the oldest first."""

@final
class OpenGathering:
    """A sum to which devices of this host are still to come."""

    site_name: str
    calls: int  # that came
    call_count: int  # that there are
    opened_us: int

def open_gatherings() -> list[OpenGathering]: ...
def monotonic_us() -> int: ...
def watch_signal(number: int) -> int | None:
    """Returns a descriptor that the signal makes readable, the same for all signals; None if the process handles or
    ignores it already."""

def unwatch_signals() -> None:
    """Signals that are watched do nothing from now on."""

def forget_in_child() -> None:
    """In a process that was forked: calls of handlers fail with PassingError from now on. Waits for nothing."""

@final
class ParentLink:
    """A job at the parent of a switch, and the way there. `worker`: which one the switch is there. `keys`: as a host's,
    if packets between the two have tags."""

    def __init__(
        self,
        socket: UdpSocket,
        *,
        job: int,
        epoch: int,
        slot_first: int,
        worker: int,
        keys: tuple[bytes, bytes] | None = None,
    ) -> None: ...

def probe_burst(*, job: int, epoch: int, nonce: int, lanes: int) -> tuple[bytes, int]:
    """Packets side by side, and the bytes of each but the last, which is shorter."""

@type_check_only
class SoftwareJobCounts(TypedDict):
    """jax_passing/switch/data_planes/job_counts.py explains them."""

    chunks: int
    lanes: int
    waiting: int
    oldest: tuple[int, int, int, int, int] | None
    workers: list[dict[str, int]]

@final
class SoftwareDataPlane:
    """A slot pool behind a UDP port, served by a C++ thread."""

    def __init__(self, host: str, port: int, slot_count: int) -> None: ...  # raises OSError
    @property
    def port(self) -> int: ...
    def add_job(
        self,
        *,
        job: int,
        epoch: int,
        slot_first: int,
        slot_count: int,
        addresses: Sequence[tuple[str, int]],
        group: tuple[tuple[str, int], str] | None,
        parent: ParentLink | None,
        keys: tuple[Sequence[bytes], bytes] | None = None,
        reach: int = ...,
        own_addresses: Sequence[str],
        lanes_per_chunk: int,
        ports_apart: bool = False,
    ) -> None:
        """Takes the parent's socket. `keys`: of each worker's contributions, and of results, if packets have tags.
        `own_addresses`: by which each worker knows us, or none. `ports_apart`: each is behind a port of its own. Raises
        ValueError, or OSError."""

    def probe(
        self, *, group: tuple[tuple[str, int], str], job: int, epoch: int, nonce: int, lanes: int
    ) -> None: ...  # raises OSError
    def path_nonce(self, host: str) -> int: ...
    def stop_multicast(self, job: int) -> None: ...
    def hears_parents_group(self, job: int) -> bool: ...
    def remove_job(self, job: int) -> None: ...
    def slot_version(self, slot: int, version: int) -> tuple[bool, int, int, bool]:
        """(empty, sequence, bitmap, complete)"""

    def overflows(self) -> dict[int, int]: ...
    def counts(self, job: int) -> SoftwareJobCounts | None: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...

@final
class SlotPool:
    """What a switch does with a packet, without a socket."""

    def __init__(self, slot_count: int) -> None: ...
    def add_job(
        self,
        *,
        job: int,
        epoch: int,
        slot_first: int,
        slot_count: int,
        addresses: Sequence[tuple[str, int]],
        parent: tuple[int, int, int, int, tuple[str, int]] | None,
        keys: tuple[Sequence[bytes], bytes] | None = None,
        parent_keys: tuple[bytes, bytes] | None = None,
        reach: int = ...,
        lanes_per_chunk: int = ...,
    ) -> None:
        """`parent`: (job, epoch, first slot, worker, address) of it there. Raises ValueError."""

    def remove_job(self, job: int) -> None: ...
    def slot_version(self, slot: int, version: int) -> tuple[bool, int, int, bool]:
        """(empty, sequence, bitmap, complete)"""

    def on_packet(self, packet: bytes, source: tuple[str, int]) -> tuple[str, str, int, int, bytes, int, bytes]:
        """(verdict, to whom, job, worker, packet to send, bits of the workers that need no lanes, what these are sent
        instead); to "nobody", "every_worker", "worker" or "parent"."""

@final
class HostProgram:
    """The sums of a module whose calls come through Python: xla_ffi/ffi/gathering/host_calls.h. Devices are indices
    among this process's."""

    def __init__(self) -> None: ...
    def add(self, spec: str) -> int:
        """Returns the index of the sum, or visit, that this text of a SumSpec describes. Raises ValueError."""

    def begin(self, *, entry: int, device: int) -> int:
        """Returns the number of the execution that begins."""

    def sum(
        self,
        site: int,
        *,
        execution: int,
        group: int,
        member: int,
        device: int,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray] = ...,
    ) -> tuple[str, str] | None:
        """Blocks until the sum is done, without the GIL. `inputs`, `outputs`: uint8[n] of each leaf, the latter to be
        written, and so are the residuals, if there are any. Returns the failure, (kind, message), if there is one."""

def end_compilation(modules: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Tells the FFI handlers that the executables of these modules that there are by now are complete.

    `modules`: (program, ordinal), as in the calls' attributes, of all that this thread lowered and may have compiled.
    Returns those whose sums only a fingerprint can tell apart.
    """

def set_fingerprint(program: str, ordinal: int, fingerprint: str) -> None:
    """Of the module for which `end_compilation` asked last by this name, before it is executed; else no effect."""

def ffi_targets() -> dict[str, dict[str, CapsuleType]]:
    """XLA FFI handlers for jax.ffi.register_ffi_target: {"passing_psum": {"instantiate": ..., "execute": ...}, ...}.

    `passing_psum` takes int32[2] (group, member), int32[] that is there when the sums before it are done, and the
    leaves; it gives int32[] for the sums after it, and the leaves' sums. Its attribute `spec` is the text of a
    SumSpec. `passing_rank` takes nothing and gives int32[]. `passing_hold`: see hold.py, order.py.
    """

def ffi_state_type() -> tuple[str, CapsuleType, CapsuleType]:
    """Name, type id and type info of the handler's per-instance state, for jax.ffi.register_ffi_type."""

def cuda_ffi_targets() -> dict[str, dict[str, CapsuleType]]:
    """The same as `ffi_targets` for platform "CUDA", with `passing_psum_done`: xla_ffi/ffi/handlers/handlers.h."""

def cuda_ffi_targets_on_cpu(library: str) -> dict[str, dict[str, CapsuleType]]:
    """For tests: those of sums for platform "cpu", with a driver that stands in for CUDA's."""

def cuda_ffi_state_type() -> tuple[str, CapsuleType, CapsuleType]: ...
def set_cuda_devices(ordinals_and_ids: Sequence[tuple[int, int]], *, first_device_id: int) -> None:
    """Tells the handlers of this process's GPUs, in the order of their ids. `first_device_id`: as of `attach`."""

@final
class MpiRequest:
    """A message on its way between two devices, for the server's `send` and `receive`.

    `done` is called once, from any thread; it fails if it is dropped without. The memory is valid until then.
    """

    @overload
    def done(self) -> None: ...
    @overload
    def done(self, kind: str, message: str) -> None: ...

@type_check_only
class MpiGroup(Protocol):
    """Devices that make collectives together: `id` has 63 bits, `name` is for people, `hosts` are the ranks of the
    devices' processes, and `collective` sums over these."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def hosts(self) -> Sequence[int]: ...
    @property
    def collective(self) -> Transport | LocalCollective: ...
    @property
    def deadline_s(self) -> float: ...

@type_check_only
class MpiServer(Protocol):
    """What XLA's collectives on CPU ask, through MPI: xla_ffi/mpi/server.h.

    Each method is called from any thread. What it raises fails the call that asked, by its type's name and text if it
    is a PassingError, else as one that has both in its text. What a signal's handler raises, KeyboardInterrupt for one,
    is raised in the main thread as well.
    """

    def begin(self) -> tuple[int, int]:
        """Returns this process's rank, and how many there are."""

    def split(self, color: int, key: int, devices: tuple[int, ...], /) -> MpiGroup:
        """Returns the group that this device is in, where its index is `key`.

        `devices`: the ids of all devices of the group, in the order of their indices; empty if XLA didn't tell."""

    def send(
        self, group: int, own_index: int, to_index: int, tag: int, data: memoryview, request: MpiRequest, /
    ) -> None: ...  # returns at once
    def receive(
        self, group: int, own_index: int, from_index: int, tag: int, buffer: memoryview, request: MpiRequest, /
    ) -> None: ...  # returns at once
    def moved_bytes(self) -> int:
        """Is asked each second that a call waits. Returns how many bytes of messages have come and gone."""

    def stalled(self, group: int, own_index: int, number: int, what: str, still_s: float, /) -> tuple[str, str] | None:
        """Is asked then, too. Returns a failure, (kind, message), to end the call.

        `number`: counts the device's calls in the group from 0; -1 for a send or receive. `still_s`: since the last
        progress."""

    def end(self) -> None:
        """Returns once all that the program has begun is over. It is called when JAX ends, and once more when nothing
        else is asked any more."""

def serve_mpi(server: MpiServer | None) -> None:
    """Makes `server` the one that XLA's calls reach. If there is none when XLA begins, jax_passing.for_jax.serving is
    imported, which calls this."""

def bind_mpi_late() -> str | None:
    """Has a jaxlib that is loaded already take the library that MPITRAMPOLINE_LIB names, which must be this one.

    Returns why it can't, or None. It also returns None where that has been done before."""

def watch_xla() -> str | None:
    """Has XLA tell from then on which devices form a group, which calls belong to which execution, and what is float16.

    Returns why it can't, or None."""
