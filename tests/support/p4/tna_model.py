"""p4/tna as a device of the conformance tests: its program interpreted, its tables filled as for a Tofino."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from jax_passing.conformance.exchanges.exchange import Exchange, Played
from jax_passing.conformance.exchanges.model import Job, Limits
from jax_passing.protocol.packet import CONTRIBUTION, HEADER, MAGIC, PORT, PROBE, PROTOCOL, RESULT
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes import tofino_admission
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent
from jax_passing.switch.data_planes.device import ip_number
from support.p4.interpreter import Machine, PacketIn, emitted
from support.p4.parts import Bits, Record, Value
from support.p4.syntax import Parser, preprocessed

PROGRAM = Path(__file__).parents[3] / "p4" / "tna" / "passing.p4"
OWN_IP, OWN_MAC, UDP_PORT, LANES = "10.0.0.254", 0xFE, PORT, 64
FIELDS = ("magic", "protocol", "type", "flags", "job", "epoch", "worker", "slot", "sequence", "version", "lane_format")
FIELDS += ("element_count",)
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
        self._target = target
        self._parse = parser.parsers["HostPacket"]
        self._machine = Machine(parser)
        self._ingress, self._egress = parser.controls["PassingIngress"](), parser.controls["PassingEgress"]()
        own = self._ingress.members["own_address"].members["own_address"]
        own.rows.append((1, {"ip": (ip_number(OWN_IP), (1 << 32) - 1)}, "set_ours", {}))
        question = self._ingress.members["answer_arp"].members["question"]
        asked = {"ip": (ip_number(OWN_IP), (1 << 32) - 1), "operation": (1, 0xFFFF)}
        question.rows.append((1, asked, "answer_arp", {"own_mac": OWN_MAC}))
        self._addresses: dict[tuple[int, int], object] = {}  # by IP address and UDP port
        self._waiting: list[tuple[Record, Record]] = []

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
        if len(data) < HEADER.size:
            return "malformed", []  # the parser fails, and drops it
        counts = self._ingress.members["verdicts"].counts
        before = dict(counts)
        hdr, meta = self._machine.new("headers_t"), self._machine.new("metadata_t")
        self._fill(hdr, data, source)
        sent = self._pass(hdr, meta)
        (verdict,) = (index for index in counts if counts[index] != before.get(index, 0))
        assert sum(counts.values()) == sum(before.values()) + 1
        return VERDICTS[verdict], sent

    def on_frame(self, frame: bytes, port: int) -> tuple[int | str, bytes] | None:
        """Handles ordinary traffic, and answers as a host. Returns the port, or "flooded", and the frame.

        The IPv4 checksum, which the deparser makes, stays as it was.
        """
        hdr, meta, packet = self._machine.new("headers_t"), self._machine.new("metadata_t"), PacketIn(frame)
        self._machine.parse(self._parse, packet, [hdr])
        meta.fields["forward"].number = 1
        arrival, departure, manager = intrinsic(ingress_port=9), intrinsic(drop_ctl=3), intrinsic(**MANAGER)
        arrival.fields["ingress_port"].number = port
        self._machine.apply(self._ingress, [hdr, meta, arrival, Record({}, {}), departure, manager])
        if departure.fields["drop_ctl"].number:
            return None
        out = b"".join(map(emitted, hdr.fields.values())) + frame[packet.at :]
        return "flooded" if manager.fields["mcast_grp_a"].number else manager.fields["ucast_egress_port"].number, out

    def add_neighbour(self, mac: int, port: int) -> None:
        """Puts it among the neighbours."""
        forward = self._ingress.members["forward"].members["forward"]
        forward.rows.append((1, {"mac": (mac, (1 << 48) - 1)}, "to_port", {"port": port}))

    def pass_on(self) -> list[tuple[object, bytes]]:
        """Passes the packets that have waited once more. Returns what comes of them."""
        waiting, self._waiting = self._waiting, []
        return [out for hdr, meta in waiting for out in self._pass(hdr, meta)]

    def _fill(self, hdr: Record, data: bytes, source: tuple[str, int]) -> None:
        """Fills the headers as the parser does."""
        headers = hdr.fields
        for name in ("ethernet", "ipv4", "udp", "passing"):
            headers[name].valid = True
        headers["ethernet"].fields["dst_mac"].number = OWN_MAC
        headers["ipv4"].fields["src_ip"].number = ip_number(source[0])
        headers["ipv4"].fields["dst_ip"].number = ip_number(OWN_IP)
        headers["udp"].fields["src_port"].number = source[1]
        headers["udp"].fields["dst_port"].number = UDP_PORT
        for name, number in zip(FIELDS, HEADER.unpack_from(data), strict=True):
            headers["passing"].fields[name].number = number
        headers["udp"].fields["udp_bytes"].number = 8 + len(data)
        headers["ipv4"].fields["total_bytes"].number = 28 + len(data)
        magic, protocol, kind, flags = data[:4]
        if len(data) != HEADER.size + 4 * LANES or (magic, protocol) != (MAGIC, PROTOCOL):
            return
        if kind not in (CONTRIBUTION, RESULT, PROBE) or flags > 7:
            return
        headers["lanes"].valid = True
        for index, place in enumerate(headers["lanes"].fields.values()):
            place.number = place.type.wrap(int.from_bytes(data[HEADER.size + 4 * index :][:4]))

    def _pass(self, hdr: Record, meta: Record) -> list[tuple[object, bytes]]:
        again = meta.fields["recirculation"]
        fresh = self._machine.new("metadata_t")
        fresh.fields["forward"].number = 1
        fresh.fields["verdict"].number = VERDICTS.index("malformed")
        if again.valid:
            for name in ("pass", "verdict"):
                fresh.fields[name].number = again.fields[name].number
        arrival, departure = intrinsic(ingress_port=9), intrinsic(drop_ctl=3)
        arrival.fields["ingress_port"].number = RECIRCULATION_PORT if again.valid else 1
        manager = intrinsic(**MANAGER)
        self._machine.apply(self._ingress, [hdr, fresh, arrival, Record({}, {}), departure, manager])
        if departure.fields["drop_ctl"].number:
            return []
        if fresh.fields["recirculation"].valid:
            if self.slow:
                self._waiting.append((hdr, fresh))
                return []
            return self._pass(hdr, fresh)
        group = manager.fields["mcast_grp_a"].number
        if fresh.fields["forward"].number == 0 and manager.fields["bypass_egress"].number:
            assert self._target == 2, "only there the packet comes from its sender's port in the last pass"
            assert manager.fields["ucast_egress_port"].number == arrival.fields["ingress_port"].number
            return [self._out(hdr)]
        if fresh.fields["forward"].number == 0:
            assert group == hdr.fields["passing"].fields["job"].number + 1, "neither dropped nor sent"
            return self._replicated(hdr)
        return [self._out(hdr)]

    def _replicated(self, hdr: Record) -> list[tuple[object, bytes]]:
        receiver = self._egress.members["replication"].members["receiver"]
        job = hdr.fields["passing"].fields["job"].number
        workers = [row[1]["worker"][0] for row in receiver.rows if row[1]["job"][0] == job]
        sent = []
        for worker in workers:
            address = {name: hdr.fields[name].fields for name in ("ethernet", "ipv4", "udp")}
            kept = {name: {key: value.number for key, value in row.items()} for name, row in address.items()}
            arrival, departure = intrinsic(egress_rid=16), intrinsic(drop_ctl=3)
            arrival.fields["egress_rid"].number = worker
            nothing = Record({}, {})
            self._machine.apply(self._egress, [hdr, nothing, arrival, nothing, departure, nothing])
            assert departure.fields["drop_ctl"].number == 0
            sent.append(self._out(hdr))
            for name, row in address.items():
                for key, value in row.items():
                    value.number = kept[name][key]
        return sent

    def _out(self, hdr: Record) -> tuple[object, bytes]:
        headers = {name: header.fields for name, header in hdr.fields.items()}
        assert headers["ipv4"]["src_ip"].number == ip_number(OWN_IP)
        assert headers["udp"]["src_port"].number == UDP_PORT
        address = headers["ipv4"]["dst_ip"].number, headers["udp"]["dst_port"].number
        header = HEADER.pack(*(headers["passing"][name].number for name in FIELDS))
        lanes = b"".join((lane.number % (1 << 32)).to_bytes(4) for lane in headers["lanes"].values())
        return self._addresses[address], header + lanes


class TofinoDevice:
    """Plays exchanges, each on a switch that was just started."""

    limits = Limits(lanes_per_chunk=LANES, whole_chunks=True, bare=False, worker_limit=tofino_admission.WORKER_LIMIT)

    def __init__(self, target: int):
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
