"""Random loss at the ends of the star's links: `python star_loss.py PROBABILITY NAMESPACE:DEVICE…`

Loads a tc classifier (eBPF, seven instructions, no compiler) that drops what arrives at a device with a probability. It
sees what the kernel hands over: a super-packet of UDP_SEGMENT or TCP segmentation is one piece, up to 64 KB, and is
lost as a whole. It stands behind the shaper: what is lost took its time on the link.
"""

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from star_network import StarError, StarNetwork, run

SYS_BPF = {"x86_64": 321, "aarch64": 280}
BPF_PROG_LOAD, BPF_OBJ_PIN = 5, 6
BPF_PROG_TYPE_SCHED_CLS = 3
GET_PRANDOM_U32 = 7
TC_ACT_UNSPEC, TC_ACT_SHOT = -1, 2
MOUNT = "/mnt"  # in a mount namespace of our own; not below /sys, which `tc -n` mounts anew


@dataclass(frozen=True)
class Lost:
    """The classifiers' counts: `packets` of a frame each, of which `super_packets` of up to 64 KB were dropped."""

    packets: int
    super_packets: int


def add(star: StarNetwork, probability: float) -> None:
    """Loses what reaches a host or the switch with this probability."""
    # In a mount namespace of its own: the pin, by which tc finds the program, goes with the process.
    run("unshare", "--mount", sys.executable, __file__, str(probability), *(f"{n}:{d}" for n, d in star.devices()))


def remove(star: StarNetwork) -> None:
    """Nothing is lost any more."""
    for namespace, device in star.devices():
        run("tc", "-n", namespace, "qdisc", "delete", "dev", device, "clsact")


def count(star: StarNetwork) -> Lost:
    packets = super_packets = 0
    for namespace, device in star.devices():
        for qdisc in json.loads(run("tc", "-n", namespace, "-s", "-json", "qdisc", "show", "dev", device)):
            if qdisc["kind"] == "clsact":
                packets += qdisc["packets"]
                super_packets += qdisc["drops"]
    return Lost(packets, super_packets)


def _program(probability: float) -> bytes:
    def instruction(code: int, register: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
        return struct.pack("<BBhi", code, source << 4 | register, offset, value)

    threshold = min(int(probability * 2**32), 2**32 - 1)
    return b"".join(
        [
            instruction(0x85, value=GET_PRANDOM_U32),  # r0 = random
            instruction(0xB4, 1, value=threshold - (threshold >> 31 << 32)),  # w1 = threshold
            instruction(0xAE, 0, 1, offset=2),  # if w0 < w1, skip two
            instruction(0xB7, value=TC_ACT_UNSPEC),
            instruction(0x95),  # return r0
            instruction(0xB7, value=TC_ACT_SHOT),
            instruction(0x95),
        ]
    )


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, 128)  # the rest of the union is zero
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(SYS_BPF[os.uname().machine], command, buffer, 128)
    if result < 0:
        raise StarError(
            f"bpf({command}): {os.strerror(ctypes.get_errno())}. Loss needs CAP_BPF and a kernel with eBPF."
        )
    return result


def main(probability: float, devices: Sequence[str]) -> None:
    subprocess.run(["mount", "-t", "bpf", "bpf", MOUNT], check=True)
    pin = f"{MOUNT}/loss"
    program = _program(probability)
    instructions, license_ = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"Apache-2.0")
    pointers = ctypes.addressof(instructions), ctypes.addressof(license_)
    loaded = _bpf(BPF_PROG_LOAD, struct.pack("<IIQQ", BPF_PROG_TYPE_SCHED_CLS, len(program) // 8, *pointers))
    path = ctypes.create_string_buffer(pin.encode())
    _bpf(BPF_OBJ_PIN, struct.pack("<QI", ctypes.addressof(path), loaded))
    for end in devices:
        namespace, device = end.split(":")
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, "clsact")
        run("tc", "-n", namespace, "filter", "add", "dev", device, "ingress", "bpf", "da", "object-pinned", pin)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
