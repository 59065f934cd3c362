"""Programs drawn from a seed: their Python source, what they compute in numpy, and how they may end.

All values are small integers, in int32 or float32, so every sum is exact. In numpy a value has a row for each device of
all hosts. Hosts run one source, in which `rank` makes differences: harmless ones in how a host computes what it sums,
and harmful ones in what it sums.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

TINY_SHAPES = ((3,), (4,), (2, 2), ())
# XLA runs a program of few thunks, or of none with more than 512 bytes, one thunk after the other, others at once.
SHAPES = ((150,), (160,), (12, 12), (129,))
BUSY = 10  # thunks beside the sums
HARMLESS = ("eye", "mask", "batch", "dead", "scan", "late")
HARMFUL = ("name", "shape", "dtype", "missing", "extra", "bucket_bytes")
MISMATCH = "ProgramMismatchError"
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


@dataclass
class Program:
    """
    Attributes:
      seed: that it was drawn from.
      hosts, devices: how many; devices of each host.
      mesh: "all" devices of a host, or "each" of them runs the program by itself, or only "one".
      check_vma: of shard_map.
      tiny: XLA runs one operation after the other.
      executions: how often it runs, with other inputs; all are dispatched before one result is read.
      inputs: the first ones vary, the others enter as P().
      orders: for each rank, the order in which it returns the results.
      harm: what one host does otherwise: one of HARMFUL, or "".
      harmless: whether hosts compute in different ways.
      look_alikes: whether sums in it can only be told apart by XLA's order.
    """

    seed: int
    hosts: int
    devices: int
    mesh: str
    check_vma: bool
    tiny: bool
    executions: int
    inputs: list[Variable]
    block: Block
    orders: list[list[int]] = field(default_factory=list)
    harm: str = ""
    harmless: bool = False
    look_alikes: bool = False

    @property
    def results(self) -> list[Variable]:
        return self.block.variables[len(self.inputs) :]

    @property
    def file(self) -> str:
        return f"program_{self.seed}.py"

    @property
    def source(self) -> str:
        """Defines `step`, of a row for each device or of equal inputs, to a row for each device."""
        lines = [f"def step({', '.join(v.name for v in self.inputs)}):"]
        lines += [f"    {v.name} = {v.name}[0]" for v in self.inputs if v.varies]
        lines += ["    " + line for line in self.block.lines()]
        lines += [f"    results = [{', '.join(v.name for v in self.results)}]"]
        busy = f"[({self.inputs[0].name} * i + 1)[None] for i in range({0 if self.tiny else BUSY})]"
        lines += [f"    return [results[i][None] for i in {self.orders}[rank]], {busy}"]
        return "\n".join(lines) + "\n"

    @property
    def allowed(self) -> set[str]:
        """Returns how a host may end: "right", or the name of an error."""
        if self.harm:
            return {MISMATCH}
        return {"right", MISMATCH} if self.look_alikes and self.harmless else {"right"}

    @property
    def description(self) -> str:
        notes = [f"{self.hosts} hosts of {self.devices} devices", f"mesh {self.mesh}", f"check_vma={self.check_vma}"]
        notes += ["tiny"] if self.tiny else []
        notes += [f"one host differs: {self.harm}"] if self.harm else []
        notes += ["hosts compute in different ways"] if self.harmless else []
        notes += ["look-alikes"] if self.look_alikes else []
        return f"{', '.join(notes)}; allowed: {', '.join(sorted(self.allowed))}\n{self.source}"

    @property
    def devices_that_run(self) -> list[list[int]]:
        """The local devices of each mesh of this program."""
        everyone = list(range(self.devices))
        return {"all": [everyone], "each": [[i] for i in everyone], "one": [everyone[-1:]]}[self.mesh]

    def data(self, execution: int, mesh: int) -> list[Rows]:
        """Draws the inputs: a row for each device of all hosts, in the order of ranks."""
        chance = np.random.default_rng([self.seed, execution, mesh])
        count = self.hosts * len(self.devices_that_run[mesh])
        found = []
        for variable in self.inputs:
            values = chance.integers(0, MODULUS, (count if variable.varies else 1, *variable.shape))
            found.append(np.broadcast_to(values, (count, *variable.shape)).astype(variable.dtype))
        return found

    def expected(self, execution: int, mesh: int) -> list[Rows]:
        """The results."""
        values = {v.name: rows for v, rows in zip(self.inputs, self.data(execution, mesh), strict=True)}
        self.block.run(values)
        return [values[v.name] for v in self.results]


class Drawer:
    """Draws one program."""

    def __init__(self, seed: int, hosts: int, devices: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0
        chance = self.chance
        tiny = chance.random() < 0.5
        self.shapes = TINY_SHAPES if tiny else SHAPES
        self.main = chance.choice(["int32", "float32"]), chance.choice(self.shapes[:3])
        kind = chance.choices(["equal", "harmless", "harm"], [30, 55, 15])[0]
        self.program = Program(
            seed=seed,
            hosts=hosts,
            devices=devices,
            mesh=chance.choices(["all", "each", "one"], [70, 20, 10])[0],
            check_vma=chance.random() < 0.5,
            tiny=tiny,
            executions=chance.choice([1, 1, 2, 3]),
            inputs=[],
            block=Block(),
        )
        self.harmless = kind == "harmless"
        program = self.program
        program.inputs = [self.variable(varies) for varies in (True, True, True, False, False)]
        program.block.variables = list(program.inputs)
        self.fill(program.block, chance.randint(1, 4), depth=0)
        self.sum(program.block)  # at least one, of all hosts
        if kind == "harm":
            self.harm()
        results = list(range(len(program.results)))
        if kind == "harmless":
            program.orders = [chance.sample(results, len(results)) for _ in range(hosts)]
            program.harmless = True
        else:
            program.orders = [results] * hosts

    def variable(self, varies: bool, like: Variable | None = None) -> Variable:
        self.count += 1
        dtype, shape = self.main if like is None else like.alike
        if like is None and self.chance.random() < 0.25:
            dtype, shape = self.chance.choice(["int32", "float32"]), self.chance.choice(self.shapes)
        return Variable(f"x{self.count}", dtype, shape, varies)

    def operand(self, variable: Variable) -> Operand:
        if not self.harmless or self.chance.random() < 0.5:
            return Operand(variable)
        ranks = [rank for rank in range(self.program.hosts) if self.chance.random() < 0.5]
        # Left out: callbacks into Python beside programs on other devices in flight. Hosts then wait for each other
        # until the deadline (docs/identity.md).
        ways = [way for way in HARMLESS if way != "late" or self.program.mesh != "each"]
        return Operand(variable, self.chance.choice(ways), tuple(ranks or [self.chance.randrange(self.program.hosts)]))

    def pick(self, block: Block, like: Variable | None = None) -> Variable:
        """One of the variables, rather a late one."""
        fitting = [v for v in block.variables if like is None or v.alike == like.alike]
        return fitting[-1 - min(int(self.chance.expovariate(0.4)), len(fitting) - 1)]

    def fill(self, block: Block, statements: int, depth: int) -> None:
        kinds = [
            (self.sum, 5),
            (self.mix, 3),
            (self.scan, 2),
            (self.cond, 2),
            (self.vmap, 2),
            (self.grad, 3),
            (self.loop, 2),
            (self.extreme, 1),
        ]
        if depth < 2:
            kinds.append((self.call, 4))
        for _ in range(statements):
            draw = self.chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
            if draw == self.call:
                self.call(block, depth)
            else:
                draw(block)

    def add(self, block: Block, statement: Any, outs: list[Variable]) -> None:
        block.statements.append(statement)
        block.variables += outs

    def sum(self, block: Block) -> None:
        chance = self.chance
        container = chance.choice(["one", "dict", "dict", "tuple", "nested"])
        count = 1 if container == "one" else chance.choice([1, 2, 3, 3, 8])
        operands = [self.operand(self.pick(block)) for _ in range(count)]
        outs = [self.variable(False, operand.variable) for operand in operands]
        axis = chance.choice(["'d'", "('d',)"])
        self.add(block, Sum(outs, operands, container, chance.choice([1, 16, 40, 25 << 20]), axis), outs)

    def mix(self, block: Block) -> None:
        a = self.pick(block)
        b = self.pick(block, a)
        out = self.variable(a.varies or b.varies, a)
        self.add(block, Mix(out, a, b), [out])

    def call(self, block: Block, depth: int) -> None:
        chance = self.chance
        like = self.pick(block)
        operands = [self.operand(self.pick(block, like)) for _ in range(chance.choice([1, 2, 2, 3]))]
        parameter = self.variable(True, like)
        body = Block(variables=[parameter])
        self.fill(body, chance.randint(1, 2), depth + 1)
        if len(body.variables) == 1:
            self.sum(body)
        style = chance.choice(["lines", "line", "place"])
        # JAX makes up the order of what it transposes: calls from one place look alike there.
        self.program.look_alikes |= style == "place" and len(operands) > 1 and _differentiates(body)
        self.count += 1
        name = f"helper{self.count}"
        outs = [self.variable(body.result.varies, body.result) for _ in operands]
        self.add(block, Call(outs, operands, name, parameter, body, style), outs)

    def scan(self, block: Block) -> None:
        start = self.operand(self.pick(block))
        out, stacked = self.variable(True, start.variable), self.variable(False, start.variable)
        self.add(block, Scan(out, stacked, start, self.chance.randint(1, 4)), [out, stacked])

    def cond(self, block: Block) -> None:
        equal = [v for v in block.variables if not v.varies]
        if equal:
            operand = self.operand(self.pick(block))
            out = self.variable(False, operand.variable)
            self.add(block, Cond(out, self.chance.choice(equal), operand), [out])

    def vmap(self, block: Block) -> None:
        a = self.pick(block)
        b = self.pick(block, a)
        out = self.variable(False, a)
        # jax.lax.psum over a vmap axis fails in shard_map(check_vma=True), of itself.
        rows = not self.program.check_vma and self.chance.random() < 0.4
        self.add(block, Vmap(out, self.operand(a), self.operand(b), rows), [out])

    def grad(self, block: Block) -> None:
        chosen = []
        for param in (v for v in block.variables if v.dtype == "float32" and not v.varies):
            factors = [v for v in block.variables if v.alike == param.alike]
            chosen.append((param, self.operand(self.chance.choice(factors))))
        if chosen:
            params, factors = zip(*chosen[-3:], strict=True)
            outs = [self.variable(False, param) for param in params]
            container = self.chance.choice(["dict", "tuple"])
            self.add(block, Grad(outs, list(params), list(factors), container), outs)

    def loop(self, block: Block) -> None:
        operand = self.operand(self.pick(block))
        out = self.variable(False, operand.variable)
        self.add(block, Loop(out, operand, self.chance.randint(2, 3)), [out])

    def extreme(self, block: Block) -> None:
        operand = self.operand(self.pick(block))
        out = self.variable(False, operand.variable)
        self.add(block, Extreme(out, operand, self.chance.choice(["pmax", "pmin"])), [out])

    def harm(self) -> None:
        """Lets one host do something else in one of the sums."""
        sums = list(_sums(self.program.block))
        chosen = self.chance.choice(sums)
        kinds = [kind for kind in HARMFUL if kind != "name" or chosen.container == "dict"]
        if all(isinstance(statement, Mix) or statement is chosen for statement in self.program.block.statements):
            kinds.remove("missing")  # a host without any sum has no program that could be compared
        chosen.harm, chosen.odd = self.chance.choice(kinds), self.chance.randrange(self.program.hosts)
        self.program.harm = chosen.harm


def _differentiates(block: Block) -> bool:
    return any(isinstance(s, Grad) or (isinstance(s, Call) and _differentiates(s.body)) for s in block.statements)


def _sums(block: Block) -> list[Sum]:
    """Returns the sums whose first result leaves the program: XLA drops the others, whatever they would sum."""
    found = [statement for statement in block.statements if isinstance(statement, Sum)]
    for statement in block.statements:
        if isinstance(statement, Call):
            found += [inner for inner in _sums(statement.body) if inner.outs == [statement.body.result]]
    return found


def draw(seed: int, hosts: int, devices: int) -> Program:
    """The program of that seed; the same in every process."""
    return Drawer(seed, hosts, devices).program
