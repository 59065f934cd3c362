"""p4/tna as a device of the conformance tests: its program interpreted, its tables filled as for a Tofino."""

import struct
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from jax_passing.conformance.exchanges.exchange import Exchange, Played
from jax_passing.conformance.exchanges.model import Job, Limits
from jax_passing.protocol.packet import PORT
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes import tofino_admission
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent
from jax_passing.switch.data_planes.device import ip_number, mac_number
from support.net.frames import IPV4, UDP, ethernet, ipv4, udp
from support.p4.interpreter import Machine, PacketIn, TooShortError, concatenated, emitted
from support.p4.parts import Bits, Record, Value
from support.p4.syntax import Parser, preprocessed

PROGRAM = Path(__file__).parents[3] / "p4" / "tna" / "passing.p4"
OWN_IP, OWN_MAC, UDP_PORT, LANES = "10.0.0.254", "00:00:00:00:00:fe", PORT, 64
HOST_MAC, HOST_PORT = "02:00:00:00:00:07", 1  # of whoever sends a packet of the protocol
MANAGER = {"ucast_egress_port": 9, "bypass_egress": 1, "mcast_grp_a": 16, "level2_exclusion_id": 9}
RECIRCULATION_PORT = 68  # of Tofino 1; what matters here is that no host is there


def intrinsic(**widths: int) -> Record:
    types = {name: Bits(width) for name, width in widths.items()}
    return Record(types, {name: Value(0, bits) for name, bits in types.items()})


@cache
def parsed(target: int) -> Parser:
    parser = Parser(preprocessed(PROGRAM, f"__TARGET_TOFINO__={target}"))
    parser.program()
    return parser


class Tofino:
    """One switch, with ports that nobody counts. `target` is 1 or 2.

    Attributes:
      slow: packets on the recirculation port wait there until `pass_on`.
    """

    slow = False

    def __init__(self, target: int):
        parser = parsed(target)
        self._parse, self._parse_copy = parser.parsers["HostPacket"], parser.parsers["EgressParser"]
        self._machine = Machine(parser)
        self._ingress, self._egress = parser.controls["PassingIngress"](), parser.controls["PassingEgress"]()
        own = self._ingress.members["own_address"].members["own_address"]
        own.rows.append((1, {"ip": (ip_number(OWN_IP), (1 << 32) - 1)}, "set_ours", {}))
        question = self._ingress.members["answer_arp"].members["question"]
        asked = {"ip": (ip_number(OWN_IP), (1 << 32) - 1), "operation": (1, 0xFFFF)}
        question.rows.append((1, asked, "answer_arp", {"own_mac": mac_number(OWN_MAC)}))
        self._addresses: dict[tuple[int, int], object] = {}  # by IP address and UDP port
        self._waiting: list[tuple[bytes, Record]] = []

    def add_job(self, job: Job, addresses: dict[object, tuple[str, int]]) -> None:
        own = [addresses[worker] for worker in job.workers]
        above = None
        if job.parent is not None:
            there = job.parent
            above = Parent(there.job, there.epoch, there.slot_first, there.worker, addresses[there.address])
        slots = JobSlots(job.number, job.epoch, job.slot_first, job.slot_count, tuple(own), parent=above)
        table = self._ingress.members["admission"].members["admission"]
        for row in tofino_admission.rows(slots, OWN_IP, job.number + 1):
            match = {key: (value, row.masks[key]) for key, value in row.match.items()}
            table.rows.append((row.priority, match, row.action, row.parameters))
        receiver = self._egress.members["replication"].members["receiver"]
        for worker, (ip, port) in enumerate(own):
            key = {"job": (job.number, 0xFFFF), "worker": (worker, 0xFFFF)}
            receiver.rows.append((1, key, "to_worker", {"mac": 1, "ip": ip_number(ip), "udp_port": port}))
        if above is not None:
            ip, port = above.address
            numbers = {"job": above.job, "epoch": above.epoch, "worker": above.worker}
            numbers["slot_shift"] = (above.slot_first - job.slot_first) % (1 << 16)
            parent = self._ingress.members["next_step"].members["parent"]
            numbers |= {"mac": 1, "ip": ip_number(ip), "udp_port": port}
            parent.rows.append((1, {"job": (job.number, 0xFFFF)}, "sum_to_parent", numbers))
        self._addresses |= {(ip_number(ip), port): name for name, (ip, port) in addresses.items()}

    def remove_jobs(self) -> None:
        """Registers stay as they are."""
        places = {"admission": self._ingress, "receiver": self._egress, "parent": self._ingress}
        for (name, control), inner in zip(places.items(), ("admission", "replication", "next_step"), strict=True):
            control.members[inner].members[name].rows.clear()

    def on_packet(self, data: bytes, source: tuple[str, int]) -> tuple[str, list[tuple[object, bytes]]]:
        """The verdict, and what goes to whom."""
        before = self.verdicts()
        packet = ipv4(source[0], OWN_IP, UDP, udp(source[1], UDP_PORT, data))
        try:
            sent = self._pass(ethernet(HOST_MAC, OWN_MAC, IPV4, packet), HOST_PORT)
        except TooShortError:
            return "malformed", []  # the parser fails, and drops it
        (verdict,) = (self.verdicts() - before).elements()
        return verdict, [self._addressed(frame) for _, frame in sent]

    def verdicts(self) -> Counter[str]:
        counts = self._ingress.members["verdicts"].counts
        return Counter({VERDICTS[index]: count for index, count in counts.items()})

    def on_frame(self, frame: bytes, port: int) -> tuple[int | str, bytes] | None:
        """Handles ordinary traffic, and answers as a host. Returns the port, or "flooded", and the frame."""
        sent = self._pass(frame, port)
        return sent[0] if sent else None

    def add_neighbour(self, mac: int, port: int) -> None:
        """Puts it among the neighbours."""
        forward = self._ingress.members["forward"].members["forward"]
        forward.rows.append((1, {"mac": (mac, (1 << 48) - 1)}, "to_port", {"port": port}))

    def pass_on(self) -> list[tuple[object, bytes]]:
        """Passes the packets that have waited once more. Returns what comes of them."""
        waiting, self._waiting = self._waiting, []
        sent = [out for frame, again in waiting for out in self._pass(frame, RECIRCULATION_PORT, again)]
        return [self._addressed(frame) for _, frame in sent]

    def _pass(self, frame: bytes, port: int, again: Record | None = None) -> list[tuple[int | str, bytes]]:
        """Returns the frames that come of it, and at which port; "flooded" stands for all of them. The IPv4 checksum,
        which the deparsers make, stays as it was."""
        machine, packet = self._machine, PacketIn(frame)
        hdr, meta = machine.new("headers_t"), machine.new("metadata_t")
        meta.fields["forward"].number = 1
        meta.fields["verdict"].number = VERDICTS.index("malformed")
        for name in ("pass", "verdict") if again else ():
            meta.fields[name].number = again.fields[name].number
        machine.parse(self._parse, packet, [hdr, meta])
        arrival, departure, manager = intrinsic(ingress_port=9), intrinsic(drop_ctl=3), intrinsic(**MANAGER)
        arrival.fields["ingress_port"].number = port
        machine.apply(self._ingress, [hdr, meta, arrival, Record({}, {}), departure, manager])
        if departure.fields["drop_ctl"].number:
            return []
        out = b"".join(map(emitted, hdr.fields.values())) + frame[packet.at :]
        if meta.fields["recirculation"].valid:
            if not self.slow:
                return self._pass(out, RECIRCULATION_PORT, meta.fields["recirculation"])
            self._waiting.append((out, meta.fields["recirculation"]))
            return []
        if not (group := manager.fields["mcast_grp_a"].number):
            return [(manager.fields["ucast_egress_port"].number, out)]
        if not meta.fields["copy"].fields["result"].number:
            return [("flooded", out)]
        return self._replicated(group - 1, emitted(meta.fields["copy"]) + emitted(meta.fields["needs"]) + out)

    def _replicated(self, job: int, copy: bytes) -> list[tuple[int | str, bytes]]:
        receiver = self._egress.members["replication"].members["receiver"]
        sent = []
        for worker in [row[1]["worker"][0] for row in receiver.rows if row[1]["job"][0] == job]:
            arrival, departure, nothing = intrinsic(egress_rid=16), intrinsic(drop_ctl=3), Record({}, {})
            arrival.fields["egress_rid"].number = worker
            packet = PacketIn(concatenated([*arrival.fields.values()]) + copy)
            hdr, meta = self._machine.new("headers_t"), self._machine.new("egress_metadata_t")
            self._machine.parse(self._parse_copy, packet, [hdr, meta, arrival])
            self._machine.apply(self._egress, [hdr, meta, arrival, nothing, departure, nothing])
            assert departure.fields["drop_ctl"].number == 0
            sent.append((worker, b"".join(map(emitted, hdr.fields.values())) + packet.data[packet.at :]))
        return sent

    def _addressed(self, frame: bytes) -> tuple[object, bytes]:
        """Returns to whom our packet goes, and what UDP carries."""
        sender, receiver = frame[26:30], frame[30:34]
        from_port, to_port, udp_bytes = struct.unpack("!HHH", frame[34:40])
        assert (sender, from_port) == (ip_number(OWN_IP).to_bytes(4), UDP_PORT)
        assert udp_bytes == len(frame) - 34 == int.from_bytes(frame[16:18]) - 20
        return self._addresses[int.from_bytes(receiver), to_port], frame[42:]


def limits_of(target: int) -> Limits:
    worker_limit = tofino_admission.WORKER_LIMIT
    return Limits(lanes_per_chunk=LANES, whole_chunks=True, worker_limit=worker_limit, bare_copies=target != 1)


class TofinoDevice:
    """Plays exchanges, each on a switch that was just started."""

    def __init__(self, target: int):
        self.limits = limits_of(target)
        self.name = f"p4/tna for Tofino {target}, interpreted"
        self._target = target

    def play(self, exchange: Exchange) -> Played:
        addresses = {name: (f"10.0.1.{1 + index}", 1024 + index) for index, name in enumerate(exchange.addresses())}
        switch = Tofino(self._target)
        for job in exchange.jobs:
            switch.add_job(replace(job), dict(addresses))
        received: dict[str, list[bytes]] = {}
        verdicts = []
        for step in exchange.steps:
            verdict, sent = switch.on_packet(step.packet, addresses[step.source])
            verdicts.append(verdict)
            for address, packet in sent:
                received.setdefault(str(address), []).append(packet)
        return Played(received, verdicts=verdicts)

    def close(self) -> None:
        pass
