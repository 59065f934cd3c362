"""Runs the controls of a P4 program as the language defines them: the part of P4_16 and of tna that p4/tna uses.

No model of a chip: stages, header vector and ALUs are the compiler's affair. What is run here is the text of the
program: actions, tables with their entries, register actions.
"""

from collections.abc import Mapping
from typing import Any

from p4_syntax import ANY, Bits, Control, Counter, Parser, Procedure, Record, Table, Value


class Machine:
    """The state of a program: its registers, counters and tables."""

    def __init__(self, parser: Parser):
        self._parser = parser

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

    # --- Names and values

    def _find(self, name: str, scopes: list[dict[str, Any]]) -> Any:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        if name in self._parser.constants:
            return self._value(self._parser.constants[name], [])
        for known in (self._parser.enums, self._parser.actions):
            if name in known:
                return known[name]
        raise KeyError(name)

    def _place(self, expression: Any, scopes: list[dict[str, Any]]) -> Any:
        """What a name or member stands for: to change it, change this object."""
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
            return self._place(expression, scopes)
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
        assert a.type is None or b.type is None or a.type == b.type, (sign, left, right)
        compared = {"==": a.number == b.number, "!=": a.number != b.number, "<": a.number < b.number}
        compared |= {">": a.number > b.number, "<=": a.number <= b.number, ">=": a.number >= b.number}
        if sign in compared:
            return Value(compared[sign])
        number = {
            "+": a.number + b.number,
            "-": a.number - b.number,
            "*": a.number * b.number,
            "&": a.number & b.number,
            "|": a.number | b.number,
            "^": a.number ^ b.number,
            "<<": a.number << b.number if sign == "<<" else 0,
        }[sign]
        bits = a.type or b.type
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
                self._assign(self._place(statement[1], scopes), value)
            else:
                self._call(statement[1], scopes)

    @staticmethod
    def _assign(place: Value, value: Value) -> None:
        assert place.type is None or value.type is None or place.type == value.type, (place, value)
        place.number = place.type.wrap(value.number) if place.type else value.number

    def _call(self, expression: Any, scopes: list[dict[str, Any]]) -> Any:
        _, what, arguments = expression
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
        """On one cell. The first output is returned, the second is the second argument."""
        register = self._find(action.register, scopes)
        cell = register.cells.setdefault(values[0].number, self.new(register.type))
        (_, held, _), *outputs = action.parameters
        scope = {held: cell} | {name: self.new(declared) for _, name, declared in outputs}
        self._run(action.body, [*scopes, scope])
        for (_, name, _), place in zip(outputs[1:], values[1:], strict=True):
            self._assign(place, scope[name])
        return scope[outputs[0][1]] if outputs else None

    def _look_up(self, table: Table, scopes: list[dict[str, Any]]) -> None:
        key = [self._value(expression, scopes).number for _, expression in table.key]
        for parts, action, arguments in table.entries:
            if all(self._holds(part, value, scopes) for part, value in zip(parts, key, strict=True)):
                return self._choose(action, [self._value(argument, scopes) for argument in arguments], scopes)
        named = dict(zip((name for name, _ in table.key), key, strict=True))
        rows = [row for row in table.rows if all(named[name] & m == v for name, (v, m) in row[1].items())]
        if rows:
            _, _, action, parameters = max(rows, key=lambda row: row[0])
            assert action in table.actions, action
            names = [name for _, name, _ in self._find(action, scopes).parameters]
            assert set(names) == set(parameters), (action, parameters)
            return self._choose(action, [Value(parameters[name]) for name in names], scopes)
        action, arguments = table.default
        return self._choose(action, [self._value(argument, scopes) for argument in arguments], scopes)

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
