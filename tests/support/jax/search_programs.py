"""Programs drawn from a seed: their Python source, what they compute in numpy, and how they may end.

All values are small integers, in int32 or float32, so every sum is exact. In numpy a value has a row for each device of
all hosts. Hosts run one source, in which `rank` makes differences: harmless ones in how a host computes what it sums,
and harmful ones in what it sums.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.jax.search_statements import (
    MODULUS,
    Block,
    Call,
    Cond,
    Extreme,
    Grad,
    Loop,
    Mix,
    Operand,
    Rows,
    Scan,
    Sum,
    Variable,
    Vmap,
)

TINY_SHAPES = ((3,), (4,), (2, 2), ())
# XLA runs a program of few thunks, or of none with more than 512 bytes, one thunk after the other, others at once.
SHAPES = ((150,), (160,), (12, 12), (129,))
BUSY = 10  # thunks beside the sums
HARMLESS = ("eye", "mask", "batch", "dead", "scan", "late")
HARMFUL = ("name", "shape", "dtype", "missing", "extra", "bucket_bytes")
MISMATCH = "ProgramMismatchError"


@dataclass
class Program:
    """A random program with sums runs on some hosts.

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
        # until the deadline (docs/internals/identity.md).
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
