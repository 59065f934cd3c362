"""Costs of single equations: against algorithms that count what they do, number by number."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from jax_passing.partitioning.cost import cost_of_jaxpr
from jax_passing.partitioning.partition import partition


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def c64(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.complex64)


def cost_of(function, *shapes):
    return cost_of_jaxpr(jax.make_jaxpr(function)(*shapes))


class Number:
    """A real number that counts what is done with it and its like."""

    done = 0

    def __init__(self, value=1.0):
        self.value = value

    def _made(self, value):
        Number.done += 1
        return Number(value)

    def __add__(self, other):
        return self._made(self.value + other.value)

    def __sub__(self, other):
        return self._made(self.value - other.value)

    def __mul__(self, other):
        return self._made(self.value * other.value)

    def __truediv__(self, other):
        return self._made(self.value / other.value)

    def root(self):
        return self._made(math.sqrt(self.value))


def matrix(rows, columns):
    return [[Number(2.0 * rows if row == column else 1.0) for column in range(columns)] for row in range(rows)]


def cholesky(n):
    a = matrix(n, n)
    for k in range(n):
        a[k][k] = a[k][k].root()
        for i in range(k + 1, n):
            a[i][k] = a[i][k] / a[k][k]
        for j in range(k + 1, n):
            for i in range(j, n):
                a[i][j] = a[i][j] - a[i][k] * a[j][k]


def lu(m, n):
    a = matrix(m, n)
    for k in range(min(m - 1, n)):
        for i in range(k + 1, m):
            a[i][k] = a[i][k] / a[k][k]
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]


def triangular_solve(n, right):
    a, b = matrix(n, n), matrix(n, right)
    for column in range(right):
        for i in range(n):
            for j in range(i):
                b[i][column] = b[i][column] - a[i][j] * b[j][column]
            b[i][column] = b[i][column] / a[i][i]


def householder(m, n):
    """R by reflections, and then Q's first n columns, from the last reflection to the first."""
    a, q = matrix(m, n), matrix(m, n)

    def reflect(v, rows, first, columns):
        for j in range(first, columns):
            dot = Number(0.0)
            for i, one in enumerate(v):
                dot = dot + one * rows[m - len(v) + i][j]
            dot = dot * Number(2.0)
            for i, one in enumerate(v):
                rows[m - len(v) + i][j] = rows[m - len(v) + i][j] - one * dot

    vectors = []
    for k in range(n):
        vectors.append([a[i][k] for i in range(k, m)])
        reflect(vectors[-1], a, k, n)
    for k in reversed(range(n)):
        reflect(vectors[k], q, k, n)


def fft(count):
    """Radix 2: of complex numbers, as pairs."""

    def transform(numbers):
        if len(numbers) == 1:
            return numbers
        even, odd = transform(numbers[::2]), transform(numbers[1::2])
        low, high = [], []
        for (ar, ai), (br, bi) in zip(even, odd, strict=True):
            wr, wi = Number(0.6), Number(0.8)
            tr, ti = wr * br - wi * bi, wr * bi + wi * br
            low.append((ar + tr, ai + ti))
            high.append((ar - tr, ai - ti))
        return low + high

    transform([(Number(), Number()) for _ in range(count)])


def thomas(n, right):
    """Solves n equations whose matrix has three diagonals."""
    low, middle, up = ([Number(value)] * n for value in (1.0, 4.0, 1.0))
    b = matrix(n, right)
    for i in range(1, n):
        factor = low[i] / middle[i - 1]
        middle[i] = middle[i] - factor * up[i - 1]
        for column in range(right):
            b[i][column] = b[i][column] - factor * b[i - 1][column]
    for i in reversed(range(n)):
        for column in range(right):
            rest = b[i][column] if i == n - 1 else b[i][column] - up[i] * b[i + 1][column]
            b[i][column] = rest / middle[i]


def ragged(groups, k, n):
    for rows in groups:
        for _ in range(rows * n):
            total = Number(0.0)
            for _ in range(k):
                total = total + Number() * Number()


def ragged_dot(left, right):
    return lax.ragged_dot(left, right, jnp.array([3, 0, 4], jnp.int32))


def tridiagonal(diagonal, right):
    return lax.linalg.tridiagonal_solve(diagonal, diagonal, diagonal, right)


@pytest.mark.parametrize(
    ("function", "shapes", "counted", "within"),
    [
        (lax.linalg.cholesky_p.bind, [f32(12, 12)], lambda: cholesky(12), 0.0),  # JAX also makes the matrix symmetric
        (lax.linalg.lu, [f32(12, 12)], lambda: lu(12, 12), 0.0),
        (lax.linalg.lu, [f32(12, 7)], lambda: lu(12, 7), 0.0),
        (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), [f32(9, 9), f32(9, 4)],
         lambda: triangular_solve(9, 4), 0.0),
        (lambda a: lax.linalg.qr(a, full_matrices=False), [f32(40, 20)], lambda: householder(40, 20), 0.15),
        (jnp.fft.fft, [c64(64)], lambda: fft(64), 0.0),
        (tridiagonal, [f32(30), f32(30, 4)], lambda: thomas(30, 4), 0.1),
        (ragged_dot, [f32(7, 5), f32(3, 5, 6)], lambda: ragged([3, 0, 4], 5, 6), 0.0),
    ],
    ids=["cholesky", "lu", "lu_high", "triangular_solve", "qr", "fft", "tridiagonal_solve", "ragged_dot"],
)  # fmt: skip
def test_formulas_count_what_the_algorithm_does(function, shapes, counted, within):
    Number.done = 0
    counted()
    assert cost_of(function, *shapes).flops == pytest.approx(Number.done, rel=within or 1e-12)


def test_a_ragged_product_and_its_gradients_cost_the_same():
    """Each row meets one group's matrix, also in the gradient of all groups' matrices."""
    flops = cost_of(ragged_dot, f32(7, 5), f32(3, 5, 6)).flops
    both = cost_of(lambda a, b, g: jax.vjp(ragged_dot, a, b)[1](g), f32(7, 5), f32(3, 5, 6), f32(7, 6)).flops
    assert flops == 2 * 7 * 5 * 6
    assert both == 3 * flops


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (jnp.fft.rfft, [f32(3, 64)], 3 * 2.5 * 64 * 6),
        (jnp.fft.irfft, [c64(3, 33)], 3 * 2.5 * 64 * 6),
        (jnp.fft.fft2, [c64(3, 8, 16)], 3 * 5 * 128 * 7),
        (lambda a: lax.linalg.eigh(a, symmetrize_input=False), [f32(2, 10, 10)], 2 * 9 * 1000),
        (lambda a: lax.linalg.svd(a, full_matrices=False), [f32(12, 10)], 14 * 12 * 100 + 8 * 1000),
        (lambda a: lax.linalg.svd(a, full_matrices=False), [f32(10, 100)], 6 * 100 * 100 + 20 * 1000),
        (lambda a: lax.linalg.svd(a, compute_uv=False), [f32(12, 10)], 4 * 12 * 100 - 4 * 1000 / 3),
        (lambda a: lax.linalg.lu(a)[0], [c64(3, 3)], 4 * (27 - 9 - 4.5 - 0.5)),
        (jnp.linalg.solve, [f32(9, 9), f32(9, 4)], 2 * 9**3 / 3 - 81 / 2 - 1.5 + 2 * 81 * 4),
        (jnp.matmul, [c64(4, 5), c64(5, 6)], 8 * 4 * 5 * 6),
        (lambda a: a * a + a, [c64(5)], 8 * 5),
        (lambda a: lax.top_k(a, 8), [f32(10, 64)], 10 * 64 * 3),
        (jnp.cumsum, [f32(64)], 64),
    ],
)
def test_formulas_by_hand(function, shapes, flops):
    assert cost_of(function, *shapes).flops == pytest.approx(flops, rel=0.05 if function is jnp.linalg.solve else 1e-12)


def test_batches_of_groups_of_a_convolution_are_multiplied_once():
    def convolution(image, kernel):
        return lax.conv_general_dilated(image, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
                                        batch_group_count=2)  # fmt: skip

    # By element of the result, 2 x 6 x 8: a kernel of 3 by 5 features of its own half of the batch.
    assert cost_of(convolution, f32(4, 8, 5), f32(3, 5, 8)).flops == 2 * (2 * 6 * 8) * 3 * 5


def kernel(a, b, out):
    @pl.when(pl.program_id(2) == 0)
    def _():
        out[...] = jnp.zeros_like(out)

    out[...] += a[...] @ b[...]


def product(a, b, **options):
    blocks = [pl.BlockSpec((16, 64), lambda i, j, k: (i, k)), pl.BlockSpec((64, 32), lambda i, j, k: (k, j))]
    return pl.pallas_call(
        kernel,
        out_shape=f32(64, 96),
        grid=(4, 3, 2),
        in_specs=blocks,
        out_specs=pl.BlockSpec((16, 32), lambda i, j, k: (i, j)),
        interpret=True,
        **options,
    )(a, b)


def test_a_kernel_costs_what_its_programs_do():
    counted = cost_of(product, f32(64, 128), f32(128, 96))
    assert counted.flops == pytest.approx(2 * 64 * 128 * 96, rel=0.01)  # and a sum of blocks, and comparisons
    # Blocks of a and b change with each of 24 programs, those of the result with each second one.
    assert counted.bytes == 4 * (24 * (16 * 64 + 64 * 32) + 12 * 16 * 32)


def test_a_kernel_costs_what_its_author_says():
    said = pl.CostEstimate(flops=7, transcendentals=3, bytes_accessed=11)
    counted = cost_of(lambda a, b: product(a, b, cost_estimate=said), f32(64, 128), f32(128, 96))
    assert (counted.flops, counted.bytes) == (10, 11)


def test_a_model_with_a_kernel_is_cut():
    @jax.custom_vjp
    def multiplied(a, b):
        return product(a, b)

    multiplied.defvjp(lambda a, b: (product(a, b), (a, b)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))

    def loss(params, x):
        return jnp.mean(multiplied(jnp.tanh(x @ params[0]), params[1]))

    plan = partition(loss, [f32(128, 128), f32(128, 96)], f32(64, 128), stages=2)
    assert plan.facts[0].flops + plan.facts[1].flops == pytest.approx(2 * 64 * 128 * (2 * 128 + 3 * 96), rel=0.05)


def test_bytes_of_a_part_are_those_of_the_part():
    table, rows, ids = f32(1000, 8), f32(3, 8), jax.ShapeDtypeStruct((3, 1), jnp.int32)
    assert cost_of(lambda t, i: lax.slice_in_dim(t, 2, 5) + 0 * i, table, rows).bytes < 4 * 1000
    looked_up = cost_of(lambda t, i: t.at[i[:, 0]].get(mode="promise_in_bounds"), table, ids)
    assert looked_up.bytes < 4 * 1000
    added = cost_of(lambda t, i, r: t.at[i[:, 0]].add(r, mode="promise_in_bounds"), table, ids, rows)
    assert added.bytes < 4 * 1000
