"""A process of the switch's machine proves by its user that an operator has started it: both ends meet at a Unix socket
without a file, and the kernel says who is there. Pure, but for the question to the kernel."""

import os
import pwd
import socket
import struct

from jax_passing.config import address_text

_UCRED = struct.Struct("3i")  # process, user, group


def socket_name(host: str, port: int) -> str:
    """Returns the name of the socket of the switch that listens at this address."""
    return f"\0jax-passing-switch/{address_text(host, port)}"


def user_of(peer: socket.socket) -> int:
    """Returns the number of the user that has connected to us, or to which we have."""
    return _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]


def is_trusted(user: int) -> bool:
    """Says whether this user may do what ours may: it could end our process anyway."""
    return user in (0, os.geteuid())


def name_of(user: int) -> str:
    """Names the user for people."""
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
