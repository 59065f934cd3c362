"""Network namespaces of this machine, which stand for machines."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
# ETHTOOL_SRXCSUM, STXCSUM, STSO, SGSO and SGRO of linux/ethtool.h
_OFFLOADS = (0x15, 0x17, 0x1F, 0x24, 0x2C)
_libc = ctypes.CDLL(None, use_errno=True)


def missing(*tools: str) -> str | None:
    """Why there can be none here, with these tools in them; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", *tools) if shutil.which(tool) is None]
    return f"{', '.join(absent)} not found" if absent else None


def run(*command: str) -> str:
    """Its output; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def ip(namespace: str, *words: str) -> None:
    """The command `ip` there."""
    run("ip", "-n", namespace, *words)


def within(namespace: str, command: Sequence[str]) -> list[str]:
    """The command line that runs it there."""
    return ["ip", "netns", "exec", namespace, *command]


def add(namespace: str) -> None:
    """Silent: IPv6's neighbour discovery would be traffic among the packets that are counted."""
    run("ip", "netns", "add", namespace)
    run(*within(namespace, ["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]))
    ip(namespace, "link", "set", "lo", "up")


def await_up(namespace: str, *devices: str) -> None:
    """Waits until devices carry frames, a little after they were set up: what is sent before is lost.

    For ports of a bridge it waits until the bridge forwards what comes to them, too.
    """
    files = [f"/sys/class/net/{device}/{file}" for device in devices for file in ("operstate", "brport/state")]
    command = within(namespace, ["sh", "-c", f"for file in {' '.join(files)}; do [ ! -e $file ] || cat $file; done"])
    until = time.monotonic() + 60
    while states := set(run(*command).split()) - {"up", "3"}:
        assert time.monotonic() < until, f"{namespace}: {', '.join(devices)}: {states}"
        time.sleep(0.01)


def turn_offloads_off(namespace: str, device: str) -> None:
    """Frames are then what a network card would send: whole, one packet each, with their checksums."""
    with inside(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload in _OFFLOADS:
            order = ctypes.create_string_buffer(struct.pack("=II", offload, 0))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("@16sP", device.encode(), ctypes.addressof(order)))


def remove(namespace: str) -> None:
    if Path("/run/netns", namespace).exists():
        run("ip", "netns", "delete", namespace)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread's new sockets belong to the namespace."""
    with open("/proc/thread-self/ns/net") as outside, open(f"/run/netns/{namespace}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(outside.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
