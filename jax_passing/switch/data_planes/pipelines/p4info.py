"""P4Info has the names, numbers and widths of a compiled program, as P4Runtime speaks of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from jax_passing.switch.data_planes.pipeline import DeviceError, only_one
from jax_passing.switch.data_planes.pipelines import protobuf

# Fields of p4.config.v1.P4Info, and of what it consists of.
_TABLES, _ACTIONS, _COUNTERS, _REGISTERS = 2, 3, 5, 11
_PREAMBLE, _SIZE = 1, 3
_ID, _NAME = 1, 2
_PARTS, _BITWIDTH = 2, 4  # match fields of a table, parameters of an action
_TYPE, _TYPE_INFO = 2, 200  # a register's type, and the structs that it may name
_BITSTRING, _STRUCT = 1, 4


@dataclass(frozen=True)
class Part:
    """A part is a key of a table, or a parameter of an action."""

    number: int
    bits: int


@dataclass(frozen=True)
class Thing:
    """A thing is a table or action with its parts, or a counter or register with its number of cells."""

    name: str
    number: int
    parts: Mapping[str, Part] = field(default_factory=dict)
    size: int = 0
    bits: int = 0  # of a register's cell


_name_of = attrgetter("name")


class P4Info:
    """Reads the file. Raises DeviceError if it is none."""

    def __init__(self, path: str | Path):
        try:
            self.encoded = Path(path).read_bytes()
            info = protobuf.decode(self.encoded)
            self._tables, self._actions = (
                [_with_parts(message) for message in protobuf.messages(info, part)] for part in (_TABLES, _ACTIONS)
            )
            self._counters = [_with_size(message) for message in protobuf.messages(info, _COUNTERS)]
            structs = _struct_bits(info)
            self._registers = [_register(message, structs) for message in protobuf.messages(info, _REGISTERS)]
        except (OSError, ValueError) as error:
            raise DeviceError(f"can't read the binary P4Info {path}: {error}") from error

    @property
    def lanes(self) -> int:
        """Returns the number of 32-bit lanes of a slot version: the registers of the control `lanes` hold them,
        whatever way they are cut."""
        return sum(register.bits for register in self._registers if "lanes" in register.name.split(".")) // 32

    def has_table(self, name: str) -> bool:
        return any(table.name.endswith("." + name) for table in self._tables)

    def table(self, name: str) -> Thing:
        return only_one("table", self._tables, name, _name_of)

    def action(self, name: str) -> Thing:
        return only_one("action", self._actions, name, _name_of)

    def counter(self, name: str) -> Thing:
        return only_one("counter", self._counters, name, _name_of)

    def register(self, name: str) -> Thing:
        return only_one("register", self._registers, name, _name_of)


def _with_parts(message: protobuf.Message) -> Thing:
    parts = {
        protobuf.text(part, _NAME): Part(protobuf.number(part, _ID), protobuf.number(part, _BITWIDTH))
        for part in protobuf.messages(message, _PARTS)
    }
    return Thing(*_name(message), parts=parts)


def _with_size(message: protobuf.Message) -> Thing:
    return Thing(*_name(message), size=protobuf.number(message, _SIZE))


def _register(message: protobuf.Message, structs: Mapping[str, int]) -> Thing:
    return Thing(*_name(message), size=protobuf.number(message, _SIZE), bits=_type_bits(message, structs))


def _struct_bits(info: protobuf.Message) -> dict[str, int]:
    bits: dict[str, int] = {}
    for entry in protobuf.messages(protobuf.decode(protobuf.data(info, _TYPE_INFO)), 1):
        members = protobuf.messages(protobuf.decode(protobuf.data(entry, 2)), 1)
        bits[protobuf.text(entry, 1)] = sum(_type_bits(member, bits) for member in members)
    return bits


def _type_bits(message: protobuf.Message, structs: Mapping[str, int]) -> int:
    """Returns how many bits a register or a struct's member has, of bit<>, int<> or a struct; 0 if it is of another
    type."""
    kind = protobuf.decode(protobuf.data(message, _TYPE))
    if _STRUCT in kind:
        return structs.get(protobuf.text(protobuf.decode(protobuf.data(kind, _STRUCT)), 1), 0)
    bitstring = protobuf.decode(protobuf.data(kind, _BITSTRING))
    return sum(protobuf.number(width, 1) for part in (1, 2) for width in protobuf.messages(bitstring, part))


def _name(message: protobuf.Message) -> tuple[str, int]:
    preamble = protobuf.decode(protobuf.data(message, _PREAMBLE))
    return protobuf.text(preamble, _NAME), protobuf.number(preamble, _ID)
