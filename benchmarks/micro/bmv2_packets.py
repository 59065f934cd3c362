"""Packets a second through the P4 program in bmv2: `python benchmarks/micro/bmv2_packets.py --lanes 64`.

One port, one worker: each contribution is complete and comes back as the result, so each packet takes the longest way.
Beside a busy machine's packets a second stands what the busiest thread of bmv2 (that of the ingress) needs for each.
Needs root, p4c-bm2-ss and simple_switch (tests/support/p4/tools.py says where they are looked for).
"""

import argparse
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from jax_passing.protocol.packet import MAX, SUM
from jax_passing.switch.data_planes.data_plane import JobSlots
from support.net.frames import IPV4, UDP, ethernet, ipv4, passing, udp
from support.p4 import tools
from support.p4.device import Switch
from support.p4.network import HOSTS

SLOTS = 64
SEQUENCE_AT = 14 + 20 + 8 + 12
IN_FLIGHT = 24  # bmv2's capture ring holds some 30 frames of any length, and drops more


def measure(switch: Switch, lane_format: int, seconds: float) -> tuple[float, float]:
    """(packets a second, microseconds of its busiest thread for each)."""
    mac, ip = HOSTS[0]
    switch.data_plane.add_job(JobSlots(1, 1, 0, SLOTS, ((ip, 5000),)))
    frames = []  # one a slot version; only the sequence changes
    for version in range(2):
        for slot in range(SLOTS):
            data = passing([slot] * switch.lanes, slot=slot, version=version, lane_format=lane_format)
            packet = ipv4(ip, switch.ip, UDP, udp(5000, switch.udp_port, data))
            frames.append(bytearray(ethernet(mac, switch.mac, IPV4, packet)))
    port = switch.ports[0]

    def send(position: int) -> None:
        frame = frames[position % len(frames)]
        struct.pack_into("!I", frame, SEQUENCE_AT, position)
        port.send(frame)

    def take() -> None:
        if port.receive() is None:
            raise SystemExit("a packet was lost: the figure would be wrong")

    for position in range(IN_FLIGHT):
        send(position)
    began, received, cpu_s = time.monotonic(), 0, switch.cpu_s()
    while time.monotonic() - began < seconds:
        for _ in range(64):
            take()
            send(received + IN_FLIGHT)
            received += 1
    elapsed = time.monotonic() - began
    busiest_s = max(after - before for before, after in zip(cpu_s, switch.cpu_s(), strict=True))
    for _ in range(IN_FLIGHT):
        take()
    switch.data_plane.remove_job(1)
    return received / elapsed, busiest_s / received * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print("lanes  format  packets/s: min median max of 3   busiest thread, us/packet: min median max")
    for lanes in options.lanes:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "passing.json"
            compiler = tools.find("p4c-bm2-ss", "PASSING_P4C")
            arguments = ["--arch", "v1model", f"-DLANES={lanes}", "-o", str(program)]
            tools.compile_program(compiler, tools.V1MODEL, *arguments)
            switch = Switch(tools.find("simple_switch", "PASSING_BMV2"), program, Path(folder) / "log")
            try:
                for name, lane_format in (("sum", SUM), ("max", MAX)):
                    runs = [measure(switch, lane_format, options.seconds) for _ in range(3)]
                    rates, costs = (sorted(values) for values in zip(*runs, strict=True))
                    shown = (
                        " ".join(f"{rate:8.0f}" for rate in rates) + 8 * " " + " ".join(f"{us:6.1f}" for us in costs)
                    )
                    print(f"{lanes:5}  {name:6}  {shown}", flush=True)
            finally:
                switch.close()


if __name__ == "__main__":
    main()
