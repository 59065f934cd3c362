"""The statements of the programs of randomised search: their source, and what they compute in numpy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

MODULUS = 17  # after each step, so that values stay small

Rows = np.ndarray
Values = dict[str, Rows]


def small(x: Rows) -> Rows:
    return np.mod(x, np.array(MODULUS, x.dtype))


def total(x: Rows) -> Rows:
    """The sum over all devices, on each of them."""
    return np.broadcast_to(x.sum(0, dtype=x.dtype), x.shape)


class Variable(NamedTuple):
    """`varies`: from device to device, or else it is equal on all of them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    varies: bool

    @property
    def alike(self) -> tuple[str, tuple[int, ...]]:
        return self.dtype, self.shape


class Operand(NamedTuple):
    """A sum's operand. The hosts in `ranks` compute it in a way of their own: one of HARMLESS."""

    variable: Variable
    how: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        text = self.variable.name
        if self.how:
            text = f"local({text}, {self.how!r}, rank in {self.ranks})"
        return text if self.variable.varies else f"vary({text})"


@dataclass
class Sum:
    """psum of a tree. `odd`: rank of the host that does otherwise, and how: one of HARMFUL."""

    outs: list[Variable]
    operands: list[Operand]
    container: str
    bucket_bytes: int
    axis: str
    harm: str = ""
    odd: int = -1

    def _tree(self, texts: Sequence[str], harmed: bool) -> str:
        if self.container == "one":
            return texts[0]
        if self.container == "dict":
            keys = [repr(f"k{i}") for i in range(len(texts))]
            if harmed and self.harm == "name":
                keys[0] = f"('k0' if rank != {self.odd} else 'memory')"
            pairs = [f"{key}: {text}" for key, text in zip(keys, texts, strict=True)]
            return f"dict_of(rank, {{{', '.join(pairs)}}})"  # each host builds it in an order of its own
        if self.container == "nested":
            return f"{{'layer': ({', '.join(texts)},)}}"
        return f"({', '.join(texts)},)"

    def lines(self) -> list[str]:
        texts = [operand.text for operand in self.operands]
        if self.harm in ("shape", "dtype"):
            texts[0] = f"bent({texts[0]}, {self.harm!r}, rank == {self.odd})"
        size = str(self.bucket_bytes)
        if self.harm == "bucket_bytes":
            size = f"{size} if rank != {self.odd} else {self.bucket_bytes + 4}"
        call = f"psum({self._tree(texts, True)}, {self.axis}, bucket_bytes={size})"
        if self.harm == "missing":
            call = f"{call} if rank != {self.odd} else not_summed({self._tree(texts, True)})"
        names = ", ".join(out.name for out in self.outs)
        lines = [f"{names}, = map(small, leaves({call}))"]
        first = self.outs[0].name
        if self.harm in ("shape", "dtype"):
            lines.append(f"{first} = fit({first}, {self.operands[0].variable.name})")
        if self.harm == "extra":
            lines += [f"if rank == {self.odd}:", f"    {first} = beside({first}, psum({self.operands[0].text}, 'd'))"]
        return lines

    def run(self, values: Values) -> None:
        for out, operand in zip(self.outs, self.operands, strict=True):
            values[out.name] = small(total(values[operand.variable.name]))


@dataclass
class Mix:
    """Work without a sum."""

    out: Variable
    a: Variable
    b: Variable

    def lines(self) -> list[str]:
        return [f"{self.out.name} = small({self.a.name} * 3 + {self.b.name} + 1)"]

    def run(self, values: Values) -> None:
        a, b = values[self.a.name], values[self.b.name]
        values[self.out.name] = small(a * a.dtype.type(3) + b + a.dtype.type(1))


@dataclass
class Call:
    """A jitted function with sums, called for several operands: on several lines, on one line, or from one place."""

    outs: list[Variable]
    operands: list[Operand]
    name: str
    parameter: Variable
    body: "Block"
    style: str

    def lines(self) -> list[str]:
        lines = ["@jax.jit", f"def {self.name}({self.parameter.name}):"]
        lines += ["    " + line for line in self.body.lines()] + [f"    return {self.body.result.name}"]
        calls = [f"{self.name}({operand.text})" for operand in self.operands]
        names = [out.name for out in self.outs]
        if self.style == "lines":
            return lines + [f"{name} = {call}" for name, call in zip(names, calls, strict=True)]
        if self.style == "line":
            return [*lines, f"{', '.join(names)}, = {', '.join(calls)},"]
        operands = ", ".join(operand.text for operand in self.operands)
        return [*lines, f"{', '.join(names)}, = [{self.name}(each) for each in ({operands},)]"]

    def run(self, values: Values) -> None:
        for out, operand in zip(self.outs, self.operands, strict=True):
            inside = {**values, self.parameter.name: values[operand.variable.name]}
            self.body.run(inside)
            values[out.name] = inside[self.body.result.name]


@dataclass
class Scan:
    """A sum of the carry and of another value in each step."""

    out: Variable
    stacked: Variable
    start: Operand
    steps: int

    def lines(self) -> list[str]:
        name = self.out.name
        return [
            f"def body_{name}(c, i):",
            "    s = psum({'carry': c, 'other': c * 2 + i}, 'd')",
            "    return small(c + s['carry']), small(s['other'])",
            f"{name}, {self.stacked.name} = scan(body_{name}, {self.start.text}, {self.steps})",
            f"{self.stacked.name} = small({self.stacked.name}.sum(0))",
        ]

    def run(self, values: Values) -> None:
        carry = values[self.start.variable.name]
        stacked = np.zeros_like(carry)
        for i in range(self.steps):
            other = small(total(carry * carry.dtype.type(2) + carry.dtype.type(i)))
            carry = small(carry + total(carry))
            stacked = stacked + other
        values[self.out.name], values[self.stacked.name] = carry, small(stacked)


@dataclass
class Cond:
    """A sum in each branch; all devices take the same one."""

    out: Variable
    predicate: Variable
    operand: Operand

    def lines(self) -> list[str]:
        return [
            f"{self.out.name} = jax.lax.cond(",
            f"    first({self.predicate.name}) % 2 == 0,",
            "    lambda x: small(psum({'even': x}, 'd')['even']),",
            "    lambda x: small(2 * psum({'odd': x + 1}, 'd')['odd']),",
            f"    {self.operand.text},",
            ")",
        ]

    def run(self, values: Values) -> None:
        x, one = values[self.operand.variable.name], values[self.operand.variable.name].dtype.type(1)
        even = values[self.predicate.name].reshape(len(x), -1)[0, 0] % 2 == 0
        values[self.out.name] = small(total(x)) if even else small((one + one) * total(x + one))


@dataclass
class Vmap:
    """Two values stacked; `rows`: summed along the stack as well, which stays inside the host."""

    out: Variable
    a: Operand
    b: Operand
    rows: bool

    def lines(self) -> list[str]:
        inner = "psum(psum(x, 'rows'), 'd')" if self.rows else "psum(x, 'd')"
        name = self.out.name
        return [
            f"{name} = jax.vmap(lambda x: {inner}, axis_name='rows')(jnp.stack([{self.a.text}, {self.b.text}]))",
            f"{name} = small({name}[0] + 2 * {name}[1])",
        ]

    def run(self, values: Values) -> None:
        a, b = values[self.a.variable.name], values[self.b.variable.name]
        sums = [total(a + b)] * 2 if self.rows else [total(a), total(b)]
        values[self.out.name] = small(sums[0] + a.dtype.type(2) * sums[1])


@dataclass
class Grad:
    """The gradient of cast parameters, equal on all devices."""

    outs: list[Variable]
    params: list[Variable]
    factors: list[Operand]
    container: str

    def lines(self) -> list[str]:
        count = len(self.params)
        keys = [f"['w{i}']" if self.container == "dict" else f"[{i}]" for i in range(count)]
        pairs = [f"'w{i}': {p.name}" if self.container == "dict" else p.name for i, p in enumerate(self.params)]
        tree = f"{{{', '.join(pairs)}}}" if self.container == "dict" else f"({', '.join(pairs)},)"
        terms = " + ".join(f"jnp.sum(p{key} * {factor.text})" for key, factor in zip(keys, self.factors, strict=True))
        names = ", ".join(out.name for out in self.outs)
        return [
            f"def loss_{self.outs[0].name}(p):",
            "    p = pvary(p, 'd')",
            f"    return {terms}",
            f"{names}, = map(small, leaves(jax.grad(loss_{self.outs[0].name})({tree})))",
        ]

    def run(self, values: Values) -> None:
        for out, factor in zip(self.outs, self.factors, strict=True):
            values[out.name] = small(total(values[factor.variable.name]))


@dataclass
class Loop:
    """One line that sums several times."""

    out: Variable
    operand: Operand
    count: int

    def lines(self) -> list[str]:
        name = self.out.name
        return [
            f"{name} = 0",
            f"for i in range({self.count}):",
            f"    {name} = small({name} * 2 + psum({self.operand.text} + i, 'd'))",
        ]

    def run(self, values: Values) -> None:
        x = values[self.operand.variable.name]
        result = np.zeros_like(x)
        for i in range(self.count):
            result = small(result * x.dtype.type(2) + total(x + x.dtype.type(i)))
        values[self.out.name] = result


@dataclass
class Extreme:
    """pmax or pmin."""

    out: Variable
    operand: Operand
    name: str

    def lines(self) -> list[str]:
        return [f"{self.out.name} = {self.name}({self.operand.text}, 'd')"]

    def run(self, values: Values) -> None:
        x = values[self.operand.variable.name]
        values[self.out.name] = np.broadcast_to(x.max(0) if self.name == "pmax" else x.min(0), x.shape)


@dataclass
class Block:
    """Statements, and the variables that they leave."""

    statements: list[Any] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    @property
    def result(self) -> Variable:
        return self.variables[-1]

    def lines(self) -> list[str]:
        return [line for statement in self.statements for line in statement.lines()]

    def run(self, values: Values) -> None:
        for statement in self.statements:
            statement.run(values)
