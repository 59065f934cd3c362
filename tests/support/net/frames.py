"""Ethernet frames, from whole ones to broken ones: every field may be given."""

import ipaddress
import struct
from collections.abc import Sequence

from jax_passing.protocol.packet import CONTRIBUTION, HEADER, MAGIC, PROTOCOL, SUM

ARP, IPV4, IPV6, VLAN = 0x0806, 0x0800, 0x86DD, 0x8100
ICMP, TCP, UDP = 1, 6, 17
BROADCAST = "ff:ff:ff:ff:ff:ff"


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ip(text: str) -> bytes:
    return ipaddress.IPv4Address(text).packed


def checksum(data: bytes) -> int:
    """Returns the Internet checksum (RFC 1071); 0 for data that holds its right checksum."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ethernet(src: str, dst: str, kind: int, payload: bytes) -> bytes:
    return mac(dst) + mac(src) + struct.pack("!H", kind) + payload


def arp(operation: int, sender: tuple[str, str], target: tuple[str, str]) -> bytes:
    """`sender` and `target` are (MAC, IP)."""
    head = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation)
    return head + mac(sender[0]) + ip(sender[1]) + mac(target[0]) + ip(target[1])


def ipv4(
    src: str,
    dst: str,
    protocol: int,
    payload: bytes,
    *,
    options: bytes = b"",
    fragment: int = 0,
    total_bytes: int | None = None,
    ttl: int = 64,
    checksum_error: int = 0,
) -> bytes:
    """`fragment`: flags and offset, as they stand in the header."""
    words = 5 + len(options) // 4
    total = 4 * words + len(payload) if total_bytes is None else total_bytes
    head = (
        struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, total, 0, fragment, ttl, protocol, 0, ip(src), ip(dst)) + options
    )
    return head[:10] + struct.pack("!H", checksum(head) ^ checksum_error) + head[12:] + payload


def udp(src_port: int, dst_port: int, payload: bytes, *, udp_bytes: int | None = None, check: int = 0) -> bytes:
    """`check`: the checksum, 0 for none."""
    length = 8 + len(payload) if udp_bytes is None else udp_bytes
    return struct.pack("!HHHH", src_port, dst_port, length, check) + payload


def udp_checksum(src: str, dst: str, packet: bytes) -> int:
    """Returns the checksum of a UDP packet without one, as arithmetic has it: 0 is written 0xFFFF."""
    return checksum(ip(src) + ip(dst) + struct.pack("!HH", UDP, len(packet)) + packet)


def echo(kind: int, payload: bytes) -> bytes:
    message = struct.pack("!BBH", kind, 0, 0) + payload
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]


def passing(
    lanes: Sequence[int],
    *,
    magic: int = MAGIC,
    protocol: int = PROTOCOL,
    kind: int = CONTRIBUTION,
    flags: int = 0,
    job: int = 1,
    epoch: int = 1,
    worker: int = 0,
    slot: int = 0,
    sequence: int = 0,
    version: int = 0,
    lane_format: int = SUM,
    count: int | None = None,
) -> bytes:
    count = len(lanes) if count is None else count
    head = HEADER.pack(magic, protocol, kind, flags, job, epoch, worker, slot, sequence, version, lane_format, count)
    return head + struct.pack(f"!{len(lanes)}I", *lanes)
