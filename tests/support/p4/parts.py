"""The parts of a P4 program, as the parser reads them and the interpreter runs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bits:
    """bit<width>, or int<width> if signed."""

    width: int
    signed: bool = False

    def wrap(self, value: int) -> int:
        value &= (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value


@dataclass
class Value:
    number: int
    type: Bits | None = None  # None: a constant, or a bool


@dataclass
class Record:
    """A struct or header."""

    types: Mapping[str, Any]
    fields: dict[str, Any]
    valid: bool = False


@dataclass
class Table:
    key: list[tuple[str, Any]]  # name, expression
    actions: list[str] = field(default_factory=list)
    default: tuple[str, list[Any]] = ("NoAction", [])
    entries: list[tuple[list[Any], str, list[Any]]] = field(default_factory=list)
    # The control plane's rows: priority, {key: (value, mask)}, action, {parameter: value}.
    rows: list[tuple[int, Mapping[str, tuple[int, int]], str, Mapping[str, int]]] = field(default_factory=list)


@dataclass
class Register:
    type: Any
    cells: dict[int, Any] = field(default_factory=dict)


@dataclass
class Counter:
    counts: dict[int, int] = field(default_factory=dict)


@dataclass
class Procedure:
    """An action, a register's apply, a control's apply."""

    parameters: list[tuple[str, str, Any]]  # direction, name, type
    body: list[Any]
    register: str = ""


@dataclass
class State:
    """A state of a parser."""

    body: list[Any]
    keys: list[Any]  # expressions
    ways: list[tuple[list[Any], str]]  # what the keys are, the next state; the first that holds


@dataclass
class StateMachine:
    """A parser of packets."""

    parameters: list[tuple[str, str, Any]]
    states: dict[str, State]


@dataclass
class Control:
    procedure: Procedure
    members: dict[str, Any] = field(default_factory=dict)  # name: (kind, ...), instances made once
    locals: list[Any] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)  # of members that P4Info is to know by a number
