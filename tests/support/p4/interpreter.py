"""Runs a P4 program as the language defines it: the part of P4_16, tna and v1model that p4/ uses.

No model of a chip: stages, header vector and ALUs are the compiler's affair. What is run here is the text of the
program: parsers, actions, tables with their entries, register actions.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from support.p4.expressions import ANY
from support.p4.parts import Bits, Control, Counter, Procedure, Record, Register, StateMachine, Table, Value
from support.p4.syntax import Parser

COMPARISONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
OPERATIONS = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv},
    **{"&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift},
}


class TooShortError(Exception):
    """The packet ends before the header that is extracted."""


class PacketIn:
    """`at`: how many bytes of it the parser has taken."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def extract(self, header: Record) -> None:
        bits = sum(each.width for each in header.types.values())
        data = self.data[self.at : self.at + bits // 8]
        if 8 * len(data) < bits:
            raise TooShortError
        self.at += len(data)
        number = int.from_bytes(data, "big")
        for name, each in header.types.items():
            bits -= each.width
            header.fields[name].number = each.wrap(number >> bits)
        header.valid = True

    def advance(self, bits: Value) -> None:
        self.at += bits.number // 8
        if self.at > len(self.data):
            raise TooShortError


def emitted(header: Record) -> bytes:
    """Nothing if it isn't valid."""
    if not header.valid:
        return b""
    return concatenated(list(header.fields.values()))


def concatenated(values: list[Value]) -> bytes:
    number = bits = 0
    for value in values:
        number = number << value.type.width | value.number % (1 << value.type.width)
        bits += value.type.width
    return (number << -bits % 8).to_bytes((bits + 7) // 8, "big")


def same(a: Any, b: Any) -> bool:
    """Returns whether two structs, or two values, are equal."""
    if isinstance(a, Record):
        return all(same(a.fields[name], b.fields[name]) for name in a.fields)
    return a.number == b.number


def copied(place: Any) -> Any:
    if isinstance(place, Record):
        return Record(place.types, {name: copied(each) for name, each in place.fields.items()}, place.valid)
    return Value(place.number, place.type)


class Machine:
    """The state of a program: its registers, counters and tables.

    Attributes:
      externs: functions of the architecture, by name. They take a function that evaluates an argument, then arguments.
    """

    def __init__(self, parser: Parser):
        self._parser = parser
        self._constants: dict[str, Any] = {}
        self.externs: dict[str, Callable[..., None]] = {}

    def new(self, declared: Any) -> Any:
        """All zeros; headers invalid."""
        declared = self._parser.types.get(declared, declared) if isinstance(declared, str) else declared
        if isinstance(declared, Mapping):
            return Record(declared, {name: self.new(each) for name, each in declared.items()})
        return Value(0, declared)

    def apply(self, control: Control, arguments: list[Any]) -> None:
        """`arguments` are Records and Values, changed in place whatever the direction."""
        scope: dict[str, Any] = dict(zip((name for _, name, _ in control.procedure.parameters), arguments, strict=True))
        scopes = [control.members, scope]
        self._run(control.locals, scopes)
        self._run(control.procedure.body, scopes)

    def parse(self, parser: StateMachine, packet: PacketIn, arguments: list[Any]) -> None:
        """Runs the parser from the start to `accept`. Raises TooShortError."""
        (_, packet_name, _), *others = parser.parameters
        scope = dict(zip((name for _, name, _ in others), arguments, strict=True)) | {packet_name: packet}
        name = "start"
        while name != "accept":
            state = parser.states[name]
            self._run(state.body, [scope])
            keys = [self._value(key, [scope]).number for key in state.keys]
            name = next(to for parts, to in state.ways if all(map(self._holds, parts, keys, [[scope]] * len(parts))))

    # --- Names and values

    def _find(self, name: str, scopes: list[dict[str, Any]]) -> Any:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        if name in self._parser.constants:
            if name not in self._constants:
                self._constants[name] = self._value(self._parser.constants[name], [])
            return self._constants[name]
        for known in (self._parser.enums, self._parser.actions):
            if name in known:
                return known[name]
        raise KeyError(name)

    def _place(self, expression: Any, scopes: list[dict[str, Any]]) -> Any:
        """Returns the object that a name or member stands for: changing the object changes it."""
        if expression[0] == "name":
            return self._find(expression[1], scopes)
        assert expression[0] == "member", expression
        base = self._place(expression[1], scopes)
        if isinstance(base, Record):
            return base.fields[expression[2]]
        return base[expression[2]]

    def _value(self, expression: Any, scopes: list[dict[str, Any]]) -> Any:
        kind = expression[0]
        if kind == "value":
            return expression[1]
        if kind in ("name", "member"):
            if expression[1] in ("true", "false"):
                return Value(expression[1] == "true")
            if kind == "member" and expression[1][0] == "call":
                assert expression[2] == "hit", expression
                return Value(self._value(expression[1], scopes))
            return self._place(expression, scopes)
        if kind == "list":
            return [self._value(part, scopes) for part in expression[1]]
        if kind == "choice":
            return self._value(expression[2 if self._value(expression[1], scopes).number else 3], scopes)
        if kind == "cast":
            return Value(expression[1].wrap(self._value(expression[2], scopes).number), expression[1])
        if kind == "slice":
            value = self._value(expression[1], scopes)
            bits = Bits(expression[2] - expression[3] + 1)
            return Value(bits.wrap(value.number >> expression[3]), bits)
        if kind == "unary":
            value = self._value(expression[2], scopes)
            if expression[1] == "!":
                return Value(not value.number)
            number = ~value.number if expression[1] == "~" else -value.number
            return Value(value.type.wrap(number) if value.type else number, value.type)
        if kind == "binary":
            return self._binary(expression[1], expression[2], expression[3], scopes)
        assert kind == "call", expression
        return self._call(expression, scopes)

    def _binary(self, sign: str, left: Any, right: Any, scopes: list[dict[str, Any]]) -> Value:
        a = self._value(left, scopes)
        if sign == "&&" and not a.number:
            return Value(False)
        if sign == "||" and a.number:
            return Value(True)
        b = self._value(right, scopes)
        if sign in ("&&", "||"):
            return Value(bool(b.number))
        if sign == "++":
            return Value(a.number << b.type.width | b.number, Bits(a.type.width + b.type.width))
        if sign in ("==", "!="):
            return Value(same(a, b) == (sign == "=="))
        shifts = sign in ("<<", ">>")
        assert shifts or a.type is None or b.type is None or a.type == b.type, (sign, left, right)
        if sign in COMPARISONS:
            return Value(COMPARISONS[sign](a.number, b.number))
        number = OPERATIONS[sign](a.number, b.number)
        bits = a.type if shifts else a.type or b.type
        return Value(bits.wrap(number) if bits else number, bits)

    # --- Statements and calls

    def _run(self, body: list[Any], scopes: list[dict[str, Any]]) -> None:
        for statement in body:
            kind = statement[0]
            if kind == "if":
                self._run(statement[2] if self._value(statement[1], scopes).number else statement[3], scopes)
            elif kind == "declare":
                scopes[-1][statement[1]] = self.new(statement[2])
                if statement[3] is not None:
                    self._assign(scopes[-1][statement[1]], self._value(statement[3], scopes))
            elif kind == "assign":
                value = self._value(statement[2], scopes)
                if statement[1][0] == "slice":
                    self._assign_bits(statement[1], value, scopes)
                else:
                    self._assign(self._place(statement[1], scopes), value)
            else:
                self._call(statement[1], scopes)

    def _assign_bits(self, expression: Any, value: Value, scopes: list[dict[str, Any]]) -> None:
        _, whole, high, low = expression
        place = self._place(whole, scopes)
        mask = (1 << (high - low + 1)) - 1
        place.number = place.number & ~(mask << low) | (value.number & mask) << low

    @staticmethod
    def _assign(place: Any, value: Any) -> None:
        if isinstance(place, Record):
            values = value.fields.values() if isinstance(value, Record) else value
            for each, given in zip(place.fields.values(), values, strict=True):
                Machine._assign(each, given)
            return
        assert place.type is None or value.type is None or place.type == value.type, (place, value)
        place.number = place.type.wrap(value.number) if place.type else value.number

    def _call(self, expression: Any, scopes: list[dict[str, Any]]) -> Any:
        _, what, arguments = expression
        if what[0] == "name" and what[1] in self.externs:
            return self.externs[what[1]](lambda argument: self._value(argument, scopes), *arguments)
        if what[0] == "name" and what[1] == "max":
            return max((self._value(argument, scopes) for argument in arguments), key=lambda value: value.number)
        if what[0] == "name":
            self._act(self._find(what[1], scopes), [self._value(argument, scopes) for argument in arguments], scopes)
            return None
        thing, method = self._place(what[1], scopes), what[2]
        if isinstance(thing, Record):
            if method == "isValid":
                return Value(thing.valid)
            thing.valid = method == "setValid"
            return None
        if isinstance(thing, Table):
            return self._look_up(thing, scopes)
        if isinstance(thing, tuple):  # the identity hash
            parts = [self._value(part, scopes) for part in arguments[0][1]]
            number = 0
            for part in parts:
                number = number << part.type.width | part.number
            return Value(thing[1].wrap(number), thing[1])
        values = [self._value(argument, scopes) for argument in arguments]
        if isinstance(thing, PacketIn):
            return getattr(thing, method)(values[0])
        if isinstance(thing, Register):
            if method == "write":
                self._assign(thing.cells.setdefault(values[0].number, self.new(thing.type)), values[1])
            else:
                self._assign(values[0], thing.cells.get(values[1].number, self.new(thing.type)))
            return None
        if isinstance(thing, Counter):
            thing.counts[values[0].number] = thing.counts.get(values[0].number, 0) + 1
            return None
        if isinstance(thing, Procedure):
            return self._execute(thing, values, scopes)
        assert isinstance(thing, Control), thing
        return self.apply(thing, values)

    def _act(self, action: Procedure, values: list[Any], scopes: list[dict[str, Any]]) -> None:
        scope = {}
        for (direction, name, declared), value in zip(action.parameters, values, strict=True):
            if direction in ("inout", "out"):
                scope[name] = value
            else:
                scope[name] = Value(value.number, declared if isinstance(declared, Bits) else value.type)
        self._run(action.body, [*scopes, scope])

    def _execute(self, action: Procedure, values: list[Any], scopes: list[dict[str, Any]]) -> Any:
        """Runs an action on one cell. Returns the first output; the second goes to the second argument."""
        register = self._find(action.register, scopes)
        cell = register.cells.setdefault(values[0].number, self.new(register.type))
        (_, held, _), *outputs = action.parameters
        scope = {held: cell} | {name: self.new(declared) for _, name, declared in outputs}
        self._run(action.body, [*scopes, scope])
        for (_, name, _), place in zip(outputs[1:], values[1:], strict=True):
            self._assign(place, scope[name])
        return scope[outputs[0][1]] if outputs else None

    def _look_up(self, table: Table, scopes: list[dict[str, Any]]) -> bool:
        """Looks the key up. Returns whether a row was hit."""
        key = [self._value(expression, scopes).number for _, expression in table.key]
        for parts, action, arguments in table.entries:
            if all(self._holds(part, value, scopes) for part, value in zip(parts, key, strict=True)):
                self._choose(action, [self._value(argument, scopes) for argument in arguments], scopes)
                return True
        named = dict(zip((name for name, _ in table.key), key, strict=True))
        rows = [row for row in table.rows if all(named[name] & m == v for name, (v, m) in row[1].items())]
        if rows:
            _, _, action, parameters = max(rows, key=lambda row: row[0])
            assert action in table.actions, action
            names = [name for _, name, _ in self._find(action, scopes).parameters]
            assert set(names) == set(parameters), (action, parameters)
            self._choose(action, [Value(parameters[name]) for name in names], scopes)
            return True
        action, arguments = table.default
        self._choose(action, [self._value(argument, scopes) for argument in arguments], scopes)
        return False

    def _holds(self, part: Any, value: int, scopes: list[dict[str, Any]]) -> bool:
        if part == ANY:
            return True
        if part[0] == "mask":
            mask = self._value(part[2], scopes).number
            return value & mask == self._value(part[1], scopes).number & mask
        return value == self._value(part, scopes).number

    def _choose(self, action: str, values: list[Any], scopes: list[dict[str, Any]]) -> None:
        if action != "NoAction":
            self._act(self._find(action, scopes), values, scopes)
