"""Strangers forge packets at a switch with a key, and achieve nothing: `sudo python benchmarks/tenants/strangers.py`

Two hosts of a star sum float32 for some seconds, several times, and compare every element with the exact sum. In each
of the rows another machine of the star, which can send from any address, sends

- idle: nothing;
- elsewhere: forged packets to a port of the switch's machine where nobody reads. This costs the machines' own time;
- forged: the same to the switch. They have the numbers of the job, epoch, worker and slot, and that rank's address and
  port, which a sniffer beside the switch has seen, and sequences of the last, the next and far chunks;
- flipped: packets that were sniffed just now, in which 1 to 8 bits are flipped;
- recorded: packets of an earlier epoch, and of another job.

"forged by" counts packets that were sent, beside those of the hosts. Below the table are the switch's counters. The
hosts' links are of 100 Mbit/s, so that two cores are enough for everybody. Ends with an error if any element is wrong.
"""

import argparse
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "star"))

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from star_network import SWITCH, StarNetwork

from jax_passing.protocol import keys
from jax_passing.protocol.packet import CONTRIBUTION, HEADER, TAG_BYTES, TAGGED

PORT = 7171
DISCARD_PORT = 9
STRANGER = 2
STRANGER_GBIT = 1.0
RECORDED = 5000
SNIFF_S = 60.0  # at most, until the hosts have started
ELEMENTS = 1 << 18


def host(rank: int, job: str, seconds: float) -> None:
    """Sums until the time is over; prints what came of it as JSON."""
    import jax

    import jax_passing

    with jax_passing.init(job=job, rank=rank, world_size=2, axis_name="d") as session:
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=(spec(), spec()), out_specs=(spec(), spec()), check_vma=False)
        def step(x, time_is_over):
            return jax_passing.psum(x, "d"), jax_passing.psum(time_is_over, "d")

        # Whole numbers, so that the sum is exact.
        one, other = (np.random.default_rng(r).integers(-1000, 1000, ELEMENTS).astype(np.float32) for r in (0, 1))
        mine, expected = (one, other)[rank], one + other
        sums = wrong = 0
        began = time.monotonic()
        while True:
            total, over = step(mine, np.float32(time.monotonic() - began > seconds))
            wrong += int((np.asarray(total) != expected).sum())
            sums += 1
            if over > 0:
                break
        elapsed_s = time.monotonic() - began
        stats = session.stats()
    print(json.dumps({"sums": sums, "wrong": wrong, "seconds": elapsed_s, "sent": stats["packets_sent"]}), flush=True)


def packets_in(payload: bytes):
    """A datagram that was captured before its packets were cut apart has several."""
    while len(payload) >= HEADER.size:
        tag_bytes = TAG_BYTES if payload[2] & TAGGED else 0
        length = HEADER.size + 4 * int.from_bytes(payload[18:20]) + tag_bytes
        yield payload[:length]
        payload = payload[length:]


def sniff(file: str) -> None:
    """Writes the first contributions that pass the switch's bridge, each with its source address and port."""
    seen: list[bytes] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as capture:
        capture.settimeout(0.2)
        until = time.monotonic() + SNIFF_S
        while time.monotonic() < until and len(seen) < RECORDED:
            try:
                data = capture.recv(1 << 17)
            except TimeoutError:
                continue
            header_bytes = 4 * (data[0] & 15)
            source_port, port = struct.unpack_from("!HH", data, header_bytes)
            if data[9] != socket.IPPROTO_UDP or port != PORT:
                continue
            for packet in packets_in(data[header_bytes + 8 :]):
                if packet[2] & ~TAGGED == CONTRIBUTION:
                    seen.append(data[12:16] + struct.pack("!HH", source_port, len(packet)) + packet)
    Path(file).write_bytes(b"".join(seen))


def read_recorded(file: str) -> list[tuple[bytes, int, bytes]]:
    """(IPv4 address, port, packet) of each."""
    data, at, found = Path(file).read_bytes(), 0, []
    while at < len(data):
        port, length = struct.unpack_from("!HH", data, at + 4)
        found.append((data[at : at + 4], port, data[at + 8 : at + 8 + length]))
        at += 8 + length
    return found


def datagram(source: bytes, source_port: int, destination: bytes, port: int, payload: bytes) -> bytearray:
    """Puts IPv4 and UDP headers before a payload, without checksums: the kernel makes IPv4's, UDP's is optional."""
    udp = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, 64, socket.IPPROTO_UDP, 0, source, destination)
    return bytearray(ip + udp + payload)


def attack(kind: str, file: str, to: str, port: int, count: int, per_second: float, seed: int) -> None:
    """Sends this number of packets at about this rate."""
    chance = random.Random(seed)
    recorded = read_recorded(file)
    destination = socket.inet_aton(to)
    made = []
    for source, source_port, packet in recorded:
        if kind == "forged":
            lanes = 4 * chance.choice([1, 1, 1, 8])
            packet = packet[:18] + struct.pack("!H", lanes // 4) + chance.randbytes(lanes + TAG_BYTES)
        elif kind == "flipped":
            changed = bytearray(packet)
            for bit in chance.sample(range(8 * len(packet)), chance.randint(1, 8)):
                changed[bit // 8] ^= 1 << bit % 8
            packet = bytes(changed)
        made.append(datagram(source, source_port, destination, port, packet))
    last = max(int.from_bytes(packet[12:16]) for _, _, packet in recorded)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        began = time.monotonic()
        for number in range(count):
            one = made[number % len(made)]
            if kind == "forged":  # its sequence: near the last one that was seen, or anywhere
                sequence = last + chance.randrange(1 << 16) if number % 2 else chance.getrandbits(32)
                struct.pack_into("!I", one, 28 + 12, sequence % (1 << 32))
            with suppress(OSError):  # the link is full
                raw.sendto(one, (to, 0))
            if number % 64 == 0:
                ahead_s = number / per_second - (time.monotonic() - began)
                if ahead_s > 0:
                    time.sleep(ahead_s)
        print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


class Bench:
    def __init__(self, star: StarNetwork, seed: int):
        self.star = star
        self.seed = seed
        key = keys.new_key()
        self.key_file = star.folder / "switch.key"
        self.key_file.touch(mode=0o600)
        self.key_file.write_text(keys.key_line(keys.SWITCH, key))
        self.address = f"{star.address(SWITCH)}:{PORT}"
        command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", self.address]
        self.switch = star.start(SWITCH, [*command, "--key-file", str(self.key_file)], stdout=subprocess.PIPE)
        assert self.switch.stdout is not None
        self.switch.stdout.readline()
        star.start(SWITCH, [sys.executable, "-P", __file__, "discard"])
        self._key = key

    def rss_mib(self) -> float:
        process = psutil.Process(self.switch.pid)
        return max(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / (1 << 20)

    def _own(self, where: int, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", __file__, *map(str, arguments)]
        return self.star.start(where, command, stdout=subprocess.PIPE, **options)

    def run(self, job: str, seconds: float, attackers: list[tuple] = (), file: str = "now") -> dict:
        """One job; `attackers` start once it runs and has been sniffed."""
        (key_file := self.star.folder / f"{job}.key").touch(mode=0o600)
        key_file.write_text(keys.key_line(keys.JOB, keys.job_key(self._key, job)))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_PASSING_KEY_FILE": str(key_file)}
        environment["JAX_PASSING_SWITCH"] = self.address
        path = str(self.star.folder / file)
        sniffer = self._own(SWITCH, "sniff", path)
        hosts = [self._own(rank, "host", rank, job, seconds, env=environment) for rank in range(2)]
        sniffer.wait()
        sending = [self._own(STRANGER, "attack", *attacker) for attacker in attackers]
        for process in sending:
            process.wait()
        results = [json.loads(process.communicate()[0]) for process in hosts]
        return {
            "goodput": results[0]["sums"] * ELEMENTS * 4 / results[0]["seconds"] / 1e6,
            "wrong": sum(result["wrong"] for result in results),
            "sums": results[0]["sums"],
            "packets": sum(result["sent"] for result in results),
            "rate": sum(result["sent"] for result in results) / results[0]["seconds"],
        }

    def counters(self) -> dict[str, int]:
        """Ends the switch."""
        for process in psutil.Process(self.switch.pid).children(recursive=True):
            process.terminate()
        self.switch.terminate()
        text = self.switch.communicate()[0].decode().partition("shut down: ")[2].strip()
        return {name: int(value) for name, value in (item.split() for item in text.split(", "))}


def main(forged: int, flipped: int, recorded: int, seconds: float, seed: int) -> int:
    table = Table(title=f"seed {seed}")
    for column in ("row", "goodput MB/s", "of idle", "sums", "wrong", "packets of hosts", "forged by", "RSS MiB"):
        table.add_column(column, justify="right")
    with StarNetwork(hosts=3, gbit=0.1) as star:
        star.shape(STRANGER_GBIT, STRANGER)
        bench = Bench(star, seed)
        to, now = star.address(SWITCH), str(star.folder / "now")
        idle = bench.run("idle", seconds, file="old")
        old = str(star.folder / "old")
        per_second = 10 * idle["rate"]

        wrong = 0

        def row(name: str, result: dict, sent: int) -> None:
            nonlocal wrong
            wrong += result["wrong"]
            share = result["goodput"] / idle["goodput"]
            table.add_row(
                name,
                f"{result['goodput']:.2f}",
                f"{100 * share:.0f} %",
                str(result["sums"]),
                str(result["wrong"]),
                str(result["packets"]),
                str(sent),
                f"{bench.rss_mib():.1f}",
            )

        row("idle", idle, 0)

        def attacked(name: str, job: str, kind: str, file: str, count: int, rate: float, port: int = PORT) -> None:
            """The hosts sum for as long as packets come, and some seconds more."""
            attack = (kind, file, to, port, count, rate, seed)
            row(name, bench.run(job, max(seconds, count / rate + 8), [attack]), count)

        attacked("elsewhere", "elsewhere", "forged", now, forged, per_second, DISCARD_PORT)
        attacked("forged", "forged", "forged", now, forged, per_second)
        attacked("flipped", "flipped", "flipped", now, flipped, per_second / 10)
        attacked("recorded, next epoch", "idle", "recorded", old, recorded, per_second / 10)
        attacked("recorded, another job", "another", "recorded", old, recorded, per_second / 10)
        counters = bench.counters()
    console = Console(width=120)
    console.print(table)
    console.print("switch:", ", ".join(f"{name} {value}" for name, value in counters.items() if value))
    return 1 if wrong else 0


def discard() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        unread.bind(("0.0.0.0", DISCARD_PORT))
        time.sleep(3600)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["host", rank, job, seconds]:
            host(int(rank), job, float(seconds))
        case ["sniff", file]:
            sniff(file)
        case ["attack", kind, file, to, port, count, per_second, seed]:
            attack(kind, file, to, int(port), int(count), float(per_second), int(seed))
        case ["discard"]:
            discard()
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
            parser.add_argument("--forged", type=int, default=10_000_000)
            parser.add_argument("--flipped", type=int, default=1_000_000)
            parser.add_argument("--recorded", type=int, default=100_000)
            parser.add_argument("--seconds", type=float, default=15.0)
            parser.add_argument("--seed", type=int, default=1)
            sys.exit(main(**vars(parser.parse_args())))
