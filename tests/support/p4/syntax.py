"""Reads a P4 program: the part of P4_16, tna and v1model that p4/ uses. p4_interpreter runs it."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+w)?0[xX][0-9a-fA-F]+|\d+w\d+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<text>\"[^\"]*\")"
    r"|(?P<sign>&&&|&&|\|\||==|!=|<=|>=|<<|\+\+|[-+*/&|^~!<>=?:;,.(){}\[\]@]))"
)
# From the weakest on, as the language has them: unlike in C, | and & bind more than a comparison.
LEVELS = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("++", "+", "-"),
    ("*", "/"),
)
ANY = ("any",)


def preprocessed(program: Path, *definitions: str) -> str:
    """Runs cpp without the architecture's files, which nobody else may have: what they declare is known here."""
    text = "\n".join(line for line in program.read_text().splitlines() if not line.startswith("#include <"))
    options = [f"-D{definition}" for definition in definitions]
    command = ["cpp", "-P", "-undef", "-nostdinc", "-I", str(program.parent), *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


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


class Parser:
    """Tokens to declarations."""

    def __init__(self, text: str):
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            assert found, text[at : at + 60]
            self._tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
            at = found.end()
        self._at = 0
        self.types: dict[str, Any] = {"bool": None}
        self.enums: dict[str, dict[str, Value]] = {}
        self.constants: dict[str, Any] = {}  # expressions
        self.controls: dict[str, Any] = {}
        self.actions: dict[str, Procedure] = {}
        self.parsers: dict[str, StateMachine] = {}

    def peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead][1] if self._at + ahead < len(self._tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        assert not expected or token == expected, f"expected {expected}, got {token}: {self._around()}"
        self._at += 1
        return token

    def _around(self) -> str:
        return " ".join(token for _, token in self._tokens[max(0, self._at - 10) : self._at + 5])

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self._at += 1
            return True
        return False

    def skip_block(self) -> None:
        """Skips from { to its }, or to ;"""
        depth = 0
        while True:
            token = self.take()
            depth += (token == "{") - (token == "}")
            if depth == 0 and token in ("}", ";"):
                return

    def annotations(self) -> dict[str, str]:
        """Reads annotations, with the one word in their parentheses."""
        found = {}
        while self.accept("@"):
            kind = self.take()
            if self.accept("("):
                found[kind] = self.take().strip('"')
                self.take(")")
        return found

    def type(self) -> Any:
        name = self.take()
        if name in ("bit", "int"):
            self.take("<")
            width = self.width()
            self.take(">")
            return Bits(width, name == "int")
        if self.accept("<"):  # of an extern
            arguments = [self.type()]
            while self.accept(","):
                arguments.append(self.type())
            self.take(">")
            return (name, arguments)
        return self.types.get(name, name)

    def width(self) -> int:
        """A number, or a product of several in parentheses."""
        if not self.accept("("):
            return int(self.take())
        number = int(self.take())
        while self.accept("*"):
            number *= int(self.take())
        self.take(")")
        return number

    # --- Expressions, as tuples whose first element says what they are

    def expression(self) -> Any:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.expression()
        self.take(":")
        return ("choice", condition, yes, self.expression())

    def binary(self, level: int) -> Any:
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while (sign := self.sign()) in LEVELS[level]:
            self._at += len(sign) if sign == ">>" else 1
            left = ("binary", sign, left, self.binary(level + 1))
        return left

    def sign(self) -> str:
        """Types end with several > as well, so each of them is a token of its own."""
        return ">>" if (self.peek(), self.peek(1)) == (">", ">") else self.peek()

    def unary(self) -> Any:
        token = self.peek()
        if token in ("!", "~", "-"):
            self.take()
            return ("unary", token, self.unary())
        if token == "(":
            self.take()
            if self.peek() in ("bit", "int") or (self.peek() in self.types and self.peek(1) == ")"):
                to = self.type()
                self.take(")")
                return ("cast", to, self.unary())
            inside = self.expression()
            if self.peek() == ",":  # of an entry
                parts = [inside]
                while self.accept(","):
                    parts.append(self.mask())
                inside = ("list", parts)
            self.take(")")
            return self.postfix(inside)
        if token == "{":
            self.take()
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.take("}")
            return ("list", parts)
        kind, token = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            width, _, digits = token.rpartition("w")
            return ("value", Value(int(digits, 0), Bits(int(width)) if width else None))
        return self.postfix(ANY if token == "_" else ("name", token))

    def postfix(self, base: Any) -> Any:
        while self.peek() in (".", "[", "("):
            sign = self.take()
            if sign == ".":
                base = ("member", base, self.take())
            elif sign == "[":
                high = int(self.take())
                self.take(":")
                base = ("slice", base, high, int(self.take()))
                self.take("]")
            else:
                base = ("call", base, self.arguments())
        return base

    def arguments(self) -> list[Any]:
        found = []
        while not self.accept(")"):
            found.append(self.expression())
            self.accept(",")
        return found

    def mask(self) -> Any:
        left = self.expression()
        return ("mask", left, self.expression()) if self.accept("&&&") else left

    # --- Statements

    def block(self) -> list[Any]:
        self.take("{")
        found = []
        while not self.accept("}"):
            found.append(self.statement())
        return found

    def statement(self) -> Any:
        if self.accept("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            yes = self.block()
            no = [self.statement()] if self.peek() == "else" and self.take() and self.peek() == "if" else None
            if no is None:
                no = self.block() if self._tokens[self._at - 1][1] == "else" else []
            return ("if", condition, yes, no)
        if self.peek() in self.types or self.peek() in ("bit", "int"):
            declared = self.type()
            name = self.take()
            value = self.expression() if self.accept("=") else None
            self.take(";")
            return ("declare", name, declared, value)
        left = self.expression()
        if self.accept("="):
            right = self.expression()
            self.take(";")
            return ("assign", left, right)
        self.take(";")
        return ("do", left)

    # --- Declarations

    def parameters(self) -> list[tuple[str, str, Any]]:
        self.take("(")
        found = []
        while not self.accept(")"):
            self.annotations()
            direction = self.take() if self.peek() in ("in", "out", "inout") else ""
            declared = self.type()
            found.append((direction, self.take(), declared))
            self.accept(",")
        return found

    def program(self) -> None:
        while self.peek():
            self.annotations()
            kind = self.peek()
            if kind == "const":
                self.take()
                self.type()
                name = self.take()
                self.take("=")
                self.constants[name] = self.expression()
                self.take(";")
            elif kind == "typedef":
                self.take()
                declared = self.type()
                self.types[self.take()] = declared
                self.take(";")
            elif kind == "enum":
                self.enumeration()
            elif kind in ("struct", "header"):
                self.record()
            elif kind == "action":
                name, action = self.action()
                self.actions[name] = action
            elif kind == "control":
                self.control()
            elif kind == "parser":
                self.state_machine()
            else:
                self.skip_block()  # the package

    def enumeration(self) -> None:
        self.take("enum")
        base = self.type()
        name = self.take()
        self.take("{")
        self.types[name], self.enums[name] = base, {}
        while not self.accept("}"):
            member = self.take()
            self.take("=")
            self.enums[name][member] = Value(int(self.take(), 0), base)
            self.accept(",")

    def record(self) -> None:
        self.take()
        name = self.take()
        self.take("{")
        fields = {}
        while not self.accept("}"):
            declared = self.type()
            fields[self.take()] = declared
            self.take(";")
        self.types[name] = fields

    def action(self) -> tuple[str, Procedure]:
        self.take("action")
        name = self.take()
        return name, Procedure(self.parameters(), self.block())

    def state_machine(self) -> None:
        self.take("parser")
        name = self.take()
        parameters = self.parameters()
        self.take("{")
        states = {}
        while not self.accept("}"):
            if self.accept("state"):
                state = self.take()
                states[state] = self.state()
            else:
                self.skip_block()  # a parser within this one
        self.parsers[name] = StateMachine(parameters, states)

    def state(self) -> State:
        self.take("{")
        state = State([], [], [])
        while not self.accept("transition"):
            state.body.append(self.statement())
        if self.accept("select"):
            self.take("(")
            state.keys = self.arguments()
            self.take("{")
            while not self.accept("}"):
                if self.accept("default"):
                    key = [ANY] * len(state.keys)
                else:
                    key = self.entry_key() if self.peek() == "(" else [self.mask()]
                self.take(":")
                state.ways.append((key, self.take()))
                self.take(";")
        else:
            state.ways.append(([], self.take()))
            self.take(";")
        self.take("}")
        return state

    def control(self) -> None:
        self.take("control")
        name = self.take()
        start = self._at
        parameters = self.parameters()
        if any(declared == "packet_out" for _, _, declared in parameters):
            self.skip_block()  # a deparser
            return
        self._at = start

        def make() -> Control:
            at, self._at = self._at, start
            made = self.control_body()
            self._at = at
            return made

        self.controls[name] = make
        self.control_body()

    def control_body(self) -> Control:
        control = Control(Procedure(self.parameters(), []))
        members = control.members
        self.take("{")
        while not self.accept("}"):
            annotations = self.annotations()
            known = set(members)
            kind = self.peek()
            if kind == "apply":
                self.take()
                control.procedure.body = self.block()
            elif kind == "action":
                name, action = self.action()
                members[name] = action
            elif kind == "table":
                self.take()
                name = self.take()
                members[name] = self.table()
            else:
                self.member(control)
            if "id" in annotations:
                (added,) = members.keys() - known
                control.ids[added] = int(annotations["id"])
        return control

    def member(self, control: Control) -> None:
        declared = self.type()
        if self.peek() != "(":  # a variable
            name = self.take()
            value = self.expression() if self.accept("=") else None
            self.take(";")
            control.locals.append(("declare", name, declared, value))
            return
        kind, types = declared if isinstance(declared, tuple) else (declared, [])
        self.take("(")
        arguments = self.arguments()
        name = self.take()
        if kind in ("Register", "register"):
            control.members[name] = Register(types[0])
        elif kind in ("Counter", "counter"):
            control.members[name] = Counter()
        elif kind == "Hash":
            control.members[name] = ("hash", types[0])
        elif str(kind).startswith("RegisterAction"):
            self.take("=")
            self.take("{")
            self.take("void")
            self.take("apply")
            control.members[name] = Procedure(self.parameters(), self.block(), arguments[0][1])
            self.take("}")
        else:
            control.members[name] = self.controls[str(kind)]()
        self.take(";")

    def table(self) -> Table:
        table = Table([])
        self.take("{")
        while not self.accept("}"):
            self.accept("const")
            what = self.take()
            self.take("=")
            if what == "key":
                self.take("{")
                while not self.accept("}"):
                    expression = self.expression()
                    self.take(":")
                    self.take()
                    table.key.append((self.annotations().get("name", ""), expression))
                    self.take(";")
            elif what == "actions":
                self.take("{")
                while not self.accept("}"):
                    self.annotations()
                    table.actions.append(self.take())
                    self.take(";")
            elif what == "default_action":
                table.default = self.called()
                self.take(";")
            elif what == "entries":
                self.take("{")
                while not self.accept("}"):
                    key = self.entry_key()
                    self.take(":")
                    table.entries.append((key, *self.called()))
                    self.take(";")
            else:
                self.expression()
                self.take(";")
        return table

    def entry_key(self) -> list[Any]:
        self.take("(")
        parts = [self.mask()]
        while self.accept(","):
            parts.append(self.mask())
        self.take(")")
        return parts

    def called(self) -> tuple[str, list[Any]]:
        name = self.take()
        return name, self.arguments() if self.accept("(") else []
