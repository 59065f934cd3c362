"""p4/v1model as a switch: its program interpreted, its tables filled by the control plane's own code."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from jax_passing.protocol.packet import PORT
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.device import Device, Neighbour
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry
from support.net.frames import checksum
from support.p4 import network
from support.p4.interpreter import Machine, PacketIn, TooShortError, concatenated, copied, emitted
from support.p4.parts import Bits, Control, Counter, Record, Register, Table, Value
from support.p4.syntax import Parser, preprocessed
from support.p4.tools import V1MODEL

PORTS = 4
DROP = 511
STANDARD = {"ingress_port": 9, "egress_spec": 9, "egress_port": 9, "mcast_grp": 16, "egress_rid": 16}
STANDARD |= {"checksum_error": 1}


@cache
def parsed(lanes: int) -> Parser:
    parser = Parser(preprocessed(V1MODEL, f"LANES={lanes}"))
    parser.program()
    return parser


def _all(control: Control, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Its tables, registers and counters, and those of the controls in it, by their names in P4Info."""
    for name, member in control.members.items():
        if isinstance(member, Control):
            yield from _all(member, f"{prefix}{name}.")
        elif isinstance(member, Table | Register | Counter):
            yield prefix + name, member


class V1Model:
    """The architecture around the program: what bmv2's simple_switch does with a frame.

    As in bmv2 the headers' memory is that of the packet before: what isn't valid has old values.
    """

    def __init__(self, lanes: int):
        parser = parsed(lanes)
        self.machine = Machine(parser)
        names = ("CheckSums", "PassingIngress", "PassingEgress", "SumIpv4")
        self._check, self._ingress, self._egress, self._sum = (parser.controls[name]() for name in names)
        self._parse = parser.parsers["ParsePacket"]
        self._hdr = self.machine.new("headers_t")
        self._truncated: int | None = None
        self.machine.externs |= {
            "verify_checksum": self._verify,
            "update_checksum": self._update,
            "mark_to_drop": self._drop,
            "truncate": self._truncate,
        }
        self.parts = dict(_all(self._ingress, "PassingIngress.")) | dict(_all(self._egress, "PassingEgress."))
        self.groups: dict[int, Sequence[tuple[int, int]]] = {}

    def _sum_of(self, evaluate: Callable[[Any], Any], fields: Any) -> int:
        return checksum(concatenated(evaluate(fields)))

    def _verify(self, evaluate: Callable[[Any], Any], condition: Any, fields: Any, held: Any, _: Any) -> None:
        if evaluate(condition).number and self._sum_of(evaluate, fields) != evaluate(held).number:
            self._standard.fields["checksum_error"].number = 1

    def _update(self, evaluate: Callable[[Any], Any], condition: Any, fields: Any, held: Any, _: Any) -> None:
        if evaluate(condition).number:
            evaluate(held).number = self._sum_of(evaluate, fields)

    @staticmethod
    def _drop(evaluate: Callable[[Any], Any], standard: Any) -> None:
        evaluate(standard).fields["egress_spec"].number = DROP
        evaluate(standard).fields["mcast_grp"].number = 0

    def _truncate(self, evaluate: Callable[[Any], Any], length: Any) -> None:
        self._truncated = evaluate(length).number

    def on_frame(self, frame: bytes, port: int) -> list[tuple[int, bytes]]:
        """Runs a frame through the program. Returns what goes out at which port."""
        machine, hdr, packet = self.machine, self._hdr, PacketIn(frame)
        for header in hdr.fields.values():
            header.valid = False
        meta = machine.new("metadata_t")
        types = {name: Bits(width) for name, width in STANDARD.items()}
        standard = self._standard = Record(types, {name: Value(0, bits) for name, bits in types.items()})
        standard.fields["ingress_port"].number = port
        with suppress(TooShortError):  # the program goes on with the headers that are whole
            machine.parse(self._parse, packet, [hdr, meta, standard])
        machine.apply(self._check, [hdr, meta])
        machine.apply(self._ingress, [hdr, meta, standard])
        rest = frame[packet.at :]
        if group := standard.fields["mcast_grp"].number:
            copies = self.groups.get(group, [])
        else:
            copies = [(standard.fields["egress_spec"].number, 0)]
        sent = [self._leave(copied(hdr), copied(meta), copied(standard), rest, *to) for to in copies if to[0] != DROP]
        return [one for one in sent if one is not None]

    def _leave(
        self, hdr: Record, meta: Record, standard: Record, rest: bytes, port: int, replica: int
    ) -> tuple[int, bytes] | None:
        changes = {"egress_port": port, "egress_rid": replica, "egress_spec": 0}
        for name, number in changes.items():
            standard.fields[name].number = number
        self._truncated = None
        self.machine.apply(self._egress, [hdr, meta, standard])
        if standard.fields["egress_spec"].number == DROP:
            return None
        self.machine.apply(self._sum, [hdr, meta])
        return port, (b"".join(map(emitted, hdr.fields.values())) + rest)[: self._truncated]


class InterpretedPipeline:
    """A V1Model as the control plane sees it (pipeline.Pipeline)."""

    def __init__(self, model: V1Model, lanes: int):
        self._model, self.lanes = model, lanes
        self.register_cells = 2 * 8192  # of types.p4

    def _part(self, kind: type, name: str) -> Any:
        found = [part for full, part in self._model.parts.items() if full.endswith("." + name)]
        (one,) = (part for part in found if isinstance(part, kind))
        return one

    def attach(self) -> None:
        for part in self._model.parts.values():
            if isinstance(part, Table):
                part.rows.clear()
        self._model.groups.clear()

    def check_control(self) -> None:
        pass  # nobody else can have it

    def _row(self, entry: Entry) -> tuple[int, dict[str, tuple[int, int]], str, dict[str, int]]:
        return 0, {key: (value, -1) for key, value in entry.match.items()}, entry.action, dict(entry.parameters)

    def insert(self, entry: Entry) -> None:
        table, row = self._part(Table, entry.table), self._row(entry)
        assert {name for name, _ in table.key} == set(entry.match), entry
        for name, number in entry.parameters.items():
            widths = [bits.width for _, known, bits in self._action(entry).parameters if known == name]
            number.to_bytes((widths[0] + 7) // 8, "big")  # raises OverflowError
        if any(other[1] == row[1] for other in table.rows):
            raise DeviceError(f"{entry.table} has such a row")
        table.rows.append(row)

    def _action(self, entry: Entry) -> Any:
        for part in self._controls(self._model._ingress), self._controls(self._model._egress):
            for control in part:
                if isinstance(control.members.get(entry.table), Table):
                    return control.members[entry.action]
        raise KeyError(entry.table)

    def _controls(self, control: Control) -> Iterator[Control]:
        yield control
        for member in control.members.values():
            if isinstance(member, Control):
                yield from self._controls(member)

    def delete(self, entry: Entry) -> None:
        self._part(Table, entry.table).rows.remove(self._row(entry))

    def entry_count(self, table: str) -> int:
        return len(self._part(Table, table).rows)

    def insert_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._model.groups[group] = tuple(replicas)

    def delete_group(self, group: int) -> None:
        self._model.groups.pop(group, None)

    def counter(self, name: str) -> list[int]:
        counts = self._part(Counter, name).counts
        return [counts.get(index, 0) for index in range(len(VERDICTS))]

    def register(self, name: str, index: int) -> int:
        register = self._part(Register, name)
        return register.cells[index].number if index in register.cells else 0

    def close(self) -> None:
        pass


class Port:
    """The far end of a port; see network.Port."""

    def __init__(self, switch: "InterpretedSwitch", number: int):
        self._switch, self._number = switch, number
        self.waiting: deque[bytes] = deque()

    def send(self, frame: bytes | bytearray) -> None:
        self._switch.on_frame(bytes(frame), self._number)

    def receive(self, timeout_s: float = 0.0) -> bytes | None:
        """There is nothing to wait for: frames pass at once."""
        return self.waiting.popleft() if self.waiting else None


class InterpretedSwitch:
    """Stands where p4_switch.Switch does, which is bmv2."""

    ip, mac, udp_port = "10.0.0.100", "02:00:00:00:01:00", PORT

    def __init__(self, lanes: int):
        self.lanes = lanes
        self._model = V1Model(lanes)
        self.ports = [Port(self, number) for number in range(PORTS)]
        hosts = tuple(Neighbour(ip, mac, host % PORTS) for host, (mac, ip) in enumerate(network.HOSTS))
        device = Device("127.0.0.1:1", self.ip, self.mac, tuple(range(PORTS)), hosts)
        self.data_plane = P4DataPlane(device, InterpretedPipeline(self._model, lanes))

    def on_frame(self, frame: bytes, port: int) -> None:
        for number, out in self._model.on_frame(frame, port):
            self.ports[number].waiting.append(out)

    def verdicts(self) -> dict[str, int]:
        """Returns the counts of verdicts that aren't 0."""
        return {name: count for name, count in self.data_plane.stats().items() if count}

    def close(self) -> None:
        pass
