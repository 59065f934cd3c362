"""The doctor asks here what the kernel grants this process: segmentation, buffers, cores, files."""

import math
import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from jax_passing.doctor.findings import Finding, bad, good, warning
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX
from jax_passing.switch.server.descriptors import BESIDE

UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
BUFFER_BYTES = 4 << 20  # kSocketBufferBytes of xla_ffi/net/udp_socket.cc
BUFFER_BYTES_MIN = 128 << 10  # two super-packets
FILES_MIN, FILES = 64, 256  # of a host: three a switch, and Python's and JAX's own
FILES_OF_SWITCH = CONNECTIONS_MAX + BESIDE


def super_packets(gso: bool, gro: bool) -> Finding:
    check = "super-packets"
    if gso and gro:
        return good(check, "the kernel cuts and joins UDP packets (UDP_SEGMENT, UDP_GRO)")
    lacking = " and ".join(name for name, has in (("UDP_SEGMENT", gso), ("UDP_GRO", gro)) if not has)
    return warning(
        check,
        f"the kernel lacks {lacking}: each packet takes a passage through it of its own",
        "Run Linux 5.0 or later.",
    )


def has_udp_option(option: int, value: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.setsockopt(socket.IPPROTO_UDP, option, value)
        except OSError:
            return False
        return True


def buffers(granted: Mapping[str, int], limits: Mapping[str, int]) -> Finding:
    """`granted`: bytes of "rmem" and "wmem" that a socket gets which asks for BUFFER_BYTES; `limits`: the sysctls."""
    check = "socket buffers"
    sizes = " and ".join(
        f"{granted[key] / 2**20:.3g} MiB to {verb}" for key, verb in (("rmem", "receive"), ("wmem", "send"))
    )
    small = [key for key in ("rmem", "wmem") if granted[key] < BUFFER_BYTES]
    if not small:
        moot = [f"net.core.{key}_max = {limit}" for key, limit in limits.items() if limit < BUFFER_BYTES]
        return good(check, sizes + (f" (CAP_NET_ADMIN makes {' and '.join(moot)} moot)" if moot else ""))
    settings = " ".join(f"net.core.{key}_max={BUFFER_BYTES}" for key in small)
    remedy = f"sysctl -w {settings} (of the machine, also for containers), or give the process CAP_NET_ADMIN."
    reason = f"{sizes}, of {BUFFER_BYTES >> 20} MiB that it asks for"
    if min(granted[key] for key in small) < BUFFER_BYTES_MIN:
        return bad(check, f"{reason}: not two super-packets fit", remedy)
    return warning(check, f"{reason}: when this process has to wait for a core, packets are lost", remedy)


def granted_buffers() -> dict[str, int]:
    """Returns the socket buffers that the kernel grants when they are asked for as the transport does, in bytes."""
    granted = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for key, forced, plain in (
            ("rmem", _SO_RCVBUFFORCE, socket.SO_RCVBUF),
            ("wmem", _SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            try:
                udp.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
            except PermissionError:
                udp.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
            granted[key] = udp.getsockopt(socket.SOL_SOCKET, plain) // 2  # the kernel doubles what is asked for
    return granted


def buffer_limits(root: Path) -> dict[str, int]:
    """Returns the readable limits of socket buffers, in bytes: only the machine's own network namespace has any."""
    found = {}
    for key in ("rmem", "wmem"):
        text = _read(root / f"proc/sys/net/core/{key}_max")
        if text.isdecimal():
            found[key] = int(text)
    return found


def cores(allowed: int, quota: float | None, devices: int) -> Finding:
    """`allowed`: cores on which this process may run. `quota`: how much of them, if its group has a limit. `devices`:
    of JAX, on CPU."""
    check = "cores"
    have = allowed if quota is None else min(allowed, quota)
    text = f"{have:g} for {devices} CPU device{'s' * (devices > 1)} and the transport"
    if have < 1:
        return bad(
            check,
            f"{text}: the group may use {have:g} of a core, and stands still when that is used up",
            "Give the process whole cores (cpu.max of its cgroup; a pod's limits).",
        )
    if have < 2 or have < devices:
        return warning(
            check,
            f"{text}: XLA's threads and the transport's wait for each other",
            "Give the process two cores or more, and as many as it has CPU devices (JAX_NUM_CPU_DEVICES).",
        )
    return good(check, text)


def allowed_cores() -> int:
    return len(os.sched_getaffinity(0))


def core_quota(root: Path) -> float | None:
    """Returns the quota of cores of this control group (a container's), or None without one."""
    quota, _, period = _read(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:  # version 1
        quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def files(soft: int, hard: int) -> Finding:
    """Judges how many files this process may open; -1: any number."""
    check = "open files"
    ours, most = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    text = f"{ours}, at most {most}".replace(str(math.inf), "any number")
    if ours < FILES_MIN:
        return bad(check, f"{text}: too few for a host", f"ulimit -n {FILES} or more (LimitNOFILE= of a systemd unit).")
    if ours < FILES:
        return warning(check, f"{text}: too few for a host with many switches", f"ulimit -n {FILES} or more.")
    if most < FILES_OF_SWITCH:
        return warning(
            check,
            f"{text}: enough for a host; a switch here would take fewer connections than it can",
            f"Raise the hard limit to {FILES_OF_SWITCH} where a switch runs (ulimit -Hn; LimitNOFILE= of a unit).",
        )
    return good(check, text)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
