"""The tags of docs/internals/protocol.md, by a program that shares nothing with switches and hosts."""

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from jax_passing.protocol import keys
from jax_passing.protocol.packet import (
    CONTRIBUTION,
    HEADER,
    KEY_WORDS,
    PROBE,
    TAG_BYTES,
    MalformedError,
    Packet,
    decode,
)

WORD = 1 << 32
LONG = 1 << 64
NO_TAG = b"(no tag)"  # as a tag, for people


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) % LONG


def _sip_hash(key: Sequence[int], words: Sequence[int]) -> int:
    """SipHash-2-4 of whole words."""
    v0, v1 = key[0] ^ 0x736F6D6570736575, key[1] ^ 0x646F72616E646F6D
    v2, v3 = key[0] ^ 0x6C7967656E657261, key[1] ^ 0x7465646279746573
    for word in (*words, len(words) * 8 << 56, None):  # None: nothing more comes
        if word is None:
            v2 ^= 0xFF
        else:
            v3 ^= word
        for _ in range(4 if word is None else 2):
            v0, v2 = (v0 + v1) % LONG, (v2 + v3) % LONG
            v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
            v0 = _rotated(v0, 32)
            v2, v0 = (v2 + v1) % LONG, (v0 + v3) % LONG
            v1, v3 = _rotated(v1, 17) ^ v2, _rotated(v3, 21) ^ v0
            v2 = _rotated(v2, 32)
        v0 ^= word or 0
    return v0 ^ v1 ^ v2 ^ v3


class PacketKey:
    """By this key packets have tags at one plane of a switch. `secret`: as a welcome has it."""

    def __init__(self, secret: bytes, plane: int = 0):
        words = struct.unpack(f">2Q{2 * KEY_WORDS}I", keys.of_plane(keys.packet_key(secret), plane))
        self._sip, self._first, self._second = words[:2], words[2 : 2 + KEY_WORDS], words[2 + KEY_WORDS :]

    def _fingerprint(self, lanes: Sequence[int], at: int) -> int:
        """Computes NH, with the key from its word `at` on."""
        half = (len(lanes) + 1) // 2
        pairs = zip(lanes[:half], [*lanes[half:], 0], strict=False)  # the zero is for the last one, if it has no other
        words = zip(self._first[at : at + half], self._second[at : at + half], strict=True)
        return sum((x + a) % WORD * ((y + b) % WORD) for (x, y), (a, b) in zip(pairs, words, strict=True)) % LONG

    def sealed(self, packet: Packet, position: int) -> bytes:
        """Returns the packet with its tag."""
        untagged = replace(packet, tag=bytes(TAG_BYTES)).encode()[:-TAG_BYTES]
        head, last = struct.unpack_from(">2Q", untagged), int.from_bytes(untagged[16 : HEADER.size])
        fingerprints = (self._fingerprint(packet.lanes, at) for at in (0, 1))
        return untagged + _sip_hash(self._sip, (*head, last << 32 | position >> 32, *fingerprints)).to_bytes(TAG_BYTES)


class JobTags:
    """The tags of a job at one plane of a live switch, put on what is sent to it and taken off what comes from it.

    Attributes:
      contributions: each worker's key, by its number.
      results: the key of the job's results.
    """

    def __init__(self, contributions: Sequence[bytes], results: bytes, plane: int = 0):
        """Makes the keys of these secrets."""
        self._secrets = contributions, results
        self.contributions = [PacketKey(secret, plane) for secret in contributions]
        self.results = PacketKey(results, plane)
        self._completed = 0  # the furthest position to which all workers have contributed
        # Positions of complete chunks, by sequence: several where exchanges jump from one wrap to another.
        self._positions: defaultdict[int, set[int]] = defaultdict(set)

    def at_plane(self, plane: int) -> "JobTags":
        """Returns those of the same job there, before its first packet."""
        return JobTags(*self._secrets, plane)

    def position(self, sequence: int) -> int:
        """Returns the position of this sequence that is nearest to the last one that all workers have reached."""
        ahead = (sequence - self._completed) % WORD
        return (self._completed + (ahead if ahead < WORD // 2 else ahead - WORD)) % LONG

    def complete(self, data: bytes) -> None:
        """Notes that the switch has a packet to send: the last worker's contribution or the parent's result came."""
        packet = decode(data)
        ahead = (packet.sequence - self._completed) % WORD
        position = self.position(packet.sequence)
        self._positions[packet.sequence].add(position)
        if packet.type == CONTRIBUTION and ahead < WORD // 2:
            self._completed = position

    def sealed(self, key: PacketKey, data: bytes) -> bytes:
        """Returns the packet with its tag; what is no packet stays as it is."""
        try:
            packet = decode(data)
        except MalformedError:
            return data
        return key.sealed(packet, self.position(packet.sequence))

    def opened(self, key: PacketKey, data: bytes) -> bytes:
        """Returns the packet without its tag, if that is right for a complete chunk; else as nobody expects it."""
        try:
            packet = decode(data)
        except MalformedError:
            return data
        if packet.type == PROBE:
            return data  # they have no tags
        if any(key.sealed(packet, position) == data for position in self._positions[packet.sequence]):
            return replace(packet, tag=b"").encode()
        return data if packet.tag else replace(packet, tag=NO_TAG).encode()
