"""Makes and sends the packets of hosts at a bridge, which a program in the kernel adds up."""

import socket
import struct

from jax_passing.protocol.packet import HEADER, MAGIC, PROTOCOL
from jax_passing.switch.data_planes.data_plane import JobSlots

HOSTS = 3
UDP_SEGMENT = 103


def job_of(workers, **changes) -> JobSlots:
    job = {"job": 7, "epoch": 3, "slot_first": 64, "slot_count": 64}
    addresses = tuple(one.getsockname() for one in workers)
    return JobSlots(**{**job, "addresses": addresses, **changes})


def packet(worker=0, slot=64, sequence=1, lanes=(1, 2, 3), **changes) -> bytes:
    fields = {"magic": MAGIC, "protocol": PROTOCOL, "type": 1, "flags": 0, "job": 7, "epoch": 3}
    fields |= {"worker": worker, "slot": slot, "sequence": sequence, "version": 0, "format": 1, "count": len(lanes)}
    fields |= changes
    return HEADER.pack(*fields.values()) + struct.pack(f"!{len(lanes)}I", *lanes)


def send_together(host: socket.socket, packets: list[bytes]) -> None:
    """Sends them as one super-packet. All but the last have one size."""
    segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(packets[0])))] if len(packets) > 1 else []
    host.sendmsg([b"".join(packets)], segment)
