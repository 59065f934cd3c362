"""A process of the switch's machine proves by its user that an operator has started it: both ends meet at a Unix socket
without a file, and the kernel says who is there. Pure, but for the questions to the kernel."""

import os
import pwd
import socket
import struct
import sys
from pathlib import Path

from jax_passing.config import address_text

_LISTENS = "0A"  # a state of sockets, in the kernel's tables
_UCRED = struct.Struct("3i")  # process, user, group


def socket_name(host: str, port: int) -> str:
    """Returns the name of the socket of the switch that listens at this address."""
    return f"\0jax-passing-switch/{address_text(host, port)}"


def user_of(peer: socket.socket) -> int:
    """Returns the number of the user that has connected to us, or to which we have."""
    return _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]


def listening_user(host: str, port: int) -> int | None:
    """Returns the number of the user whose process listens at this very address of TCP; None if none does. Anybody may
    take a Unix socket's name that is free; this address the switch has."""
    family, table = (socket.AF_INET6, "tcp6") if ":" in host else (socket.AF_INET, "tcp")
    words = struct.iter_unpack("4s", socket.inet_pton(family, host.partition("%")[0]))
    address = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for (word,) in words) + f":{port:04X}"
    for line in Path("/proc/net", table).read_text().splitlines()[1:]:
        _, local, _, state, _, _, _, user, *_ = line.split()
        if (local, state) == (address, _LISTENS):
            return int(user)
    return None


def is_trusted(user: int) -> bool:
    """Says whether this user may do what ours may: it could end our process anyway."""
    return user in (0, os.geteuid())


def name_of(user: int) -> str:
    """Names the user for people."""
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
