"""This is the packet of docs/internals/protocol.md. Its twins are xla_ffi/wire/header.h, p4/types.p4 and
p4/headers.p4."""

import struct
from dataclasses import dataclass, replace

MAGIC, PROTOCOL = 0x9A, 1
CONTRIBUTION, RESULT, PROBE = 1, 2, 3
TAGGED = 0x80  # beside the type: the packet ends with a tag
TAG_BYTES = 8
TYPES = {CONTRIBUTION: "contribution", RESULT: "result", PROBE: "probe"}
NAN, POS_INF, NEG_INF = 1, 2, 4
STICKY = NAN | POS_INF | NEG_INF  # the flags that the switch ors over all workers
# In packets of sums, of switches that know these flags: none of the lanes that are counted follow; the worker needs no
# lanes of the result.
BARE, NO_RESULT = 8, 16
SUM, MAX = 1, 2
LANES_AT_MTU_1500 = 360  # every path carries so many, with a tag
LANES_MAX = 2232  # so that a packet fits into an MTU of 9000
KEY_WORDS = LANES_MAX // 2 + 1  # for one half of the lanes (xla_ffi/wire/packet_key.h)
WORKERS_MAX = 64  # of one switch: bits of a slot's bitmap
PORT, GROUP_PORT = 7171, 7170  # UDP, unless others are chosen: a switch's first, and that of all its multicast groups
EVERY_WORKER = 0xFFFF  # stands for the worker in a result

# magic, protocol, type, flags, job, epoch, worker, slot, sequence, version, lane format, element count
HEADER = struct.Struct("!BBBBHHHHIBBH")
assert HEADER.size == 20


class MalformedError(ValueError):
    """These bytes are no packet. Its text is the reason's name in xla_ffi/wire/header.h."""


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A packet's lanes are unsigned 32-bit integers, though the signed maximum of them may be taken."""

    type: int = CONTRIBUTION
    flags: int = 0
    job: int = 0
    epoch: int = 0
    worker: int = 0
    slot: int = 0
    sequence: int = 0
    version: int = 0
    lane_format: int = SUM
    lanes: tuple[int, ...] = ()
    left_out: int = 0  # lanes that are counted but don't follow, of a packet with BARE
    tag: bytes = b""  # TAG_BYTES, or none

    @property
    def element_count(self) -> int:
        return len(self.lanes) + self.left_out

    def without_lanes(self, more_flags: int = 0) -> "Packet":
        """Returns the packet with none of its lanes."""
        return replace(self, flags=self.flags | BARE | more_flags, lanes=(), left_out=self.element_count)

    def encode(self) -> bytes:
        """Encodes without a check: tests need bad packets."""
        header = HEADER.pack(
            MAGIC,
            PROTOCOL,
            self.type | (TAGGED if self.tag else 0),
            self.flags,
            self.job,
            self.epoch,
            self.worker,
            self.slot,
            self.sequence,
            self.version,
            self.lane_format,
            self.element_count,
        )
        return header + struct.pack(f"!{len(self.lanes)}I", *self.lanes) + self.tag


def decode(data: bytes) -> Packet:
    """Checks all that can be checked without knowing the job. Raises MalformedError."""
    if len(data) < HEADER.size:
        raise MalformedError("too_short")
    magic, protocol, kind, flags, job, epoch, worker, slot, sequence, version, lane_format, count = HEADER.unpack_from(
        data
    )
    kind, tag_bytes = kind & ~TAGGED, TAG_BYTES if kind & TAGGED else 0
    carried = 0 if flags & BARE else count
    checks = {
        "bad_magic": magic == MAGIC,
        "bad_protocol_version": protocol == PROTOCOL,
        "bad_type": kind in (CONTRIBUTION, RESULT, PROBE),
        "bad_flags": flags & ~(STICKY if lane_format == MAX else STICKY | BARE | NO_RESULT) == 0,
        "bad_version": version in (0, 1),
        "bad_lane_format": lane_format in (SUM, MAX),
        "bad_element_count": 1 <= count <= LANES_MAX,
        "bad_length": len(data) == HEADER.size + 4 * carried + tag_bytes,
    }
    for reason, passed in checks.items():
        if not passed:
            raise MalformedError(reason)
    return Packet(
        type=kind,
        flags=flags,
        job=job,
        epoch=epoch,
        worker=worker,
        slot=slot,
        sequence=sequence,
        version=version,
        lane_format=lane_format,
        lanes=struct.unpack_from(f"!{carried}I", data, HEADER.size),
        left_out=count - carried,
        tag=data[HEADER.size + 4 * carried :],
    )
