"""Reads the tokens, types, expressions and statements of a P4 program."""

import re
from typing import Any

from support.p4.parts import Bits, Procedure, StateMachine, Value

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


class ExpressionParser:
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
