"""Reads a P4 program: the part of P4_16, tna and v1model that p4/ uses. interpreter.py runs it."""

import subprocess
from pathlib import Path
from typing import Any

from support.p4.expressions import ANY, ExpressionParser
from support.p4.parts import Control, Counter, Procedure, Register, State, StateMachine, Table, Value


def preprocessed(program: Path, *definitions: str) -> str:
    """Runs cpp without the architecture's files, which nobody else may have: what they declare is known here."""
    text = "\n".join(line for line in program.read_text().splitlines() if not line.startswith("#include <"))
    options = [f"-D{definition}" for definition in definitions]
    command = ["cpp", "-P", "-undef", "-nostdinc", "-I", str(program.parent), *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


class Parser(ExpressionParser):
    """Reads the declarations of a program, whose tokens, types and statements ExpressionParser reads."""

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
