"""A host tells of its programs with sums over hosts, and compares them with those of rank 0. This does no I/O.

When a program first runs, rank 0 tells all others of it; each compares it with its own. Sums of programs that differ
never meet, as their names differ: what this adds is that all hosts hear why, at once.
"""

import hashlib
from collections import Counter, deque
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from jax_passing.errors import Failure, ProgramMismatchError
from jax_passing.host.control.program_differences import described, difference, fields_of, location_of
from jax_passing.protocol import control_messages as messages

if TYPE_CHECKING:
    from jax_passing._native import ProgramInfo

IDENTITIES_BYTES_MAX = 512 * 1024  # of their JSON
_NAME_MAX, _DEVICES_MAX, _FINGERPRINT_MAX = 1024, 4096, 16 * 1024  # characters, of up to 6 bytes each in JSON
assert IDENTITIES_BYTES_MAX + 6 * (_NAME_MAX + _DEVICES_MAX + _FINGERPRINT_MAX) + 1024 < messages.RELAY_BYTES_MAX
# Limits a device queue, on either side. Hosts are as far apart as programs run before a sum has to be complete.
PENDING_MAX = 1024
_SHOWN_MAX = 3


class Program(Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled program with sums over hosts, as its host sees it.

    Attributes:
      name: of the module, and the number of its devices.
      devices: that it runs on, for people and to tell device queues apart.
      fingerprint: "SHA256 SUMMARY" of the whole compiled module; empty unless some of its sums need it.
      identities: of its sums, JSON each; sorted by source location, with repetition.
      digest: of all identities, if they are too long to be sent: then those above are only the first ones.
    """

    name: Annotated[str, Meta(max_length=_NAME_MAX)]
    devices: Annotated[str, Meta(max_length=_DEVICES_MAX)]
    fingerprint: Annotated[str, Meta(max_length=_FINGERPRINT_MAX)]
    identities: tuple[str, ...]
    digest: Annotated[str, Meta(max_length=64)] = ""

    @property
    def stream(self) -> str:
        """Returns its sums' stream."""
        return ", ".join(sorted({_stream(identity) for identity in self.identities}))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Program)


def _stream(identity: str) -> str:
    try:
        return str(fields_of(identity).get("stream", ""))
    except msgspec.DecodeError:
        return ""


def bounded(info: "ProgramInfo") -> Program:
    """Truncates a program's description the same way on both hosts before comparing."""
    identities = tuple(sorted(info.identities, key=lambda identity: (location_of(identity), identity)))
    total, count = 0, 0
    for identity in identities:
        total += len(_encoder.encode(identity)) + 1
        if total > IDENTITIES_BYTES_MAX:
            break
        count += 1
    digest = hashlib.sha256(_encoder.encode(identities)).hexdigest() if count < len(identities) else ""
    return Program(
        name=info.name[:_NAME_MAX],
        devices=info.devices[:_DEVICES_MAX],
        fingerprint=info.fingerprint[:_FINGERPRINT_MAX],
        identities=identities[:count],
        digest=digest,
    )


def encode(program: Program) -> bytes:
    """Writes a program, in messages.RELAY_BYTES_MAX at most."""
    return _encoder.encode(program)


def decode(payload: bytes) -> Program:
    """Reads a program. Raises msgspec.DecodeError."""
    return messages.decode(_decoder, payload)


class Ledger:
    """The programs of one host, and of rank 0, in the order in which they first ran.

    The programs of one stream on the same devices are a *device queue*: they run in one order on every host, and those
    of other queues in any. So the k-th of a queue is compared with the k-th.
    """

    def __init__(self, rank: int):
        self._rank = rank
        # At most one of the two holds anything of a device queue: what the other side hasn't told of yet.
        self._own: dict[tuple[str, str], deque[Program]] = {}
        self._rank_0s: dict[tuple[str, str], deque[Program]] = {}
        self._compared: Counter[tuple[str, str]] = Counter()

    def own(self, program: Program) -> Failure | None:
        """Takes one that this host runs. Returns a failure, of all hosts, if rank 0 runs another one instead."""
        return self._add(program, self._own, self._rank_0s)

    def rank_0s(self, program: Program) -> Failure | None:
        """Does the same with a program that rank 0 runs."""
        return self._add(program, self._rank_0s, self._own)

    def _add(
        self,
        program: Program,
        side: dict[tuple[str, str], deque[Program]],
        other: dict[tuple[str, str], deque[Program]],
    ) -> Failure | None:
        device_queue = program.devices, program.stream
        if not (counterparts := other.get(device_queue)):
            waiting = side.setdefault(device_queue, deque())
            waiting.append(program)
            return None if len(waiting) <= PENDING_MAX else self._failure(self.waiting())
        counterpart = counterparts.popleft()
        self._compared[device_queue] += 1
        own, rank_0s = (program, counterpart) if side is self._own else (counterpart, program)
        if own == rank_0s:
            return None
        text = difference(own, rank_0s, self._rank, self._compared[device_queue])
        return self._failure(text)

    def _failure(self, text: str) -> Failure:
        return Failure(ProgramMismatchError.__name__, text)

    def waiting(self) -> str:
        """Tells, for a sum that makes no progress, of programs of only one side so far. Empty if there are none."""
        sentences = []
        sides = ((f"Rank {self._rank}", "rank 0", self._own), ("Rank 0", f"rank {self._rank}", self._rank_0s))
        for who, other, side in sides:
            programs = [program for waiting in side.values() for program in waiting]
            if programs:
                some = "; ".join(described(program) for program in programs[:_SHOWN_MAX])
                more = f"; and {len(programs) - _SHOWN_MAX} more" if len(programs) > _SHOWN_MAX else ""
                sentences.append(f"{who} runs {some}{more}. So far {other} hasn't.")
        return " ".join(sentences)
