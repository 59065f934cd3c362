"""Properties of the fixed point, against exact rational arithmetic."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jax_passing import _native

NO_EXPONENT = -(1 << 20)
# Name, bits of a quantised element for H ranks, exponent of the smallest unit.
FLOATS = {
    "float16": (np.dtype(np.float16), lambda h: 30 - h, -149),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), lambda h: 15 - h, -126),
    "float32": (np.dtype(np.float32), lambda h: 30 - h, -149),
    "float64": (np.dtype(np.float64), lambda h: 61 - 2 * h, -1074),
}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@st.composite
def ranks_of_floats(draw):
    """One 1-D array of finite elements for each rank, all of one dtype and length."""
    name = draw(st.sampled_from(sorted(FLOATS)))
    width = 8 * FLOATS[name][0].itemsize
    elements = st.floats(width=width if name != "bfloat16" else 32, allow_nan=False, allow_infinity=False)
    world_size = draw(st.sampled_from([1, 2, 3, 7, 64]))
    count = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(elements, min_size=count, max_size=count), min_size=world_size, max_size=world_size))
    with np.errstate(over="ignore"):
        ranks = np.array(rows).astype(FLOATS[name][0])
    ranks[~np.isfinite(ranks)] = 1  # float32 that rounded beyond bfloat16
    return name, ranks


def sum_lanes(lanes: list[bytes]) -> bytes:
    """What the switch does: int32[lanes] in network order, added modulo 2^32."""
    return sum(np.frombuffer(one, ">u4").astype(np.uint32) for one in lanes).astype(">u4").tobytes()


def headroom_bits(world_size: int) -> int:
    return (world_size - 1).bit_length()


def sum_over_ranks(name: str, ranks: np.ndarray) -> tuple[bytes, int]:
    exponent = max(_native.block_exponent(name, [rank.tobytes()]) for rank in ranks)
    h = headroom_bits(len(ranks))
    lanes = []
    for rank in ranks:
        encoded, flags = _native.encode_lanes(name, [rank.tobytes()], exponent, h)
        assert flags == 0
        lanes.append(encoded)
    return _native.decode_lanes(name, sum_lanes(lanes), ranks.shape[1], exponent, h), exponent


def rational(x: np.generic) -> Fraction:
    return Fraction(float(x))


@given(ranks_of_floats())
def test_sum_is_within_its_bound(case):
    name, ranks = case
    dtype, bits, last_bit = FLOATS[name]
    decoded, exponent = sum_over_ranks(name, ranks)
    values = np.frombuffer(decoded, dtype)
    if exponent == NO_EXPONENT:
        assert not ranks.any()
        assert not any(decoded)
        return
    largest = max(abs(rational(x)) for x in ranks.flat)
    assert Fraction(2) ** (exponent - 1) <= largest < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - bits(headroom_bits(len(ranks))), last_bit)
    for i, value in enumerate(values):
        quantised = [round(rational(x) / unit) for x in ranks[:, i]]  # round: ties to even
        total = sum(quantised) * unit
        assert abs(total - sum(rational(x) for x in ranks[:, i])) <= len(ranks) * unit / 2
        # The nearest value of the dtype, the even one of two: no neighbour is nearer.
        if math.isinf(value):
            limit = rational(ml_dtypes.finfo(dtype).max)
            step = limit - rational(np.nextafter(ml_dtypes.finfo(dtype).max, dtype.type(0)))
            assert abs(total) >= limit + step / 2
            continue
        error = abs(rational(value) - total)
        for direction in (-math.inf, math.inf):
            with np.errstate(over="ignore"):
                neighbour = np.nextafter(value, dtype.type(direction))
            if np.isfinite(neighbour):
                other = abs(rational(neighbour) - total)
                assert error < other or (error == other and not value.view(f"u{dtype.itemsize}") & 1)


@given(ranks_of_floats(), st.randoms())
def test_order_of_ranks_does_not_matter(case, random):
    name, ranks = case
    order = list(range(len(ranks)))
    random.shuffle(order)
    assert sum_over_ranks(name, ranks[order]) == sum_over_ranks(name, ranks)


@given(st.data())
def test_integers_wrap(data):
    dtype = np.dtype(data.draw(st.sampled_from(INTEGERS)))
    info = np.iinfo(dtype)
    world_size = data.draw(st.sampled_from([1, 2, 3, 64]))
    elements = st.one_of(st.integers(int(info.min), int(info.max)), st.sampled_from([int(info.min), int(info.max)]))
    rows = st.lists(elements, min_size=4, max_size=4)
    ranks = np.array(data.draw(st.lists(rows, min_size=world_size, max_size=world_size)), dtype)
    decoded, exponent = sum_over_ranks(dtype.name, ranks)
    assert exponent == NO_EXPONENT
    np.testing.assert_array_equal(np.frombuffer(decoded, dtype), ranks.sum(axis=0, dtype=dtype))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_non_finite_elements_set_their_flags(elements):
    x = np.array(elements, np.float32)
    exponent = _native.block_exponent("float32", [x.tobytes()])
    lanes, flags = _native.encode_lanes("float32", [x.tobytes()], exponent, 0)
    assert flags == np.isnan(x).any() * 1 | (x == np.inf).any() * 2 | (x == -np.inf).any() * 4
    decoded = np.frombuffer(_native.decode_lanes("float32", lanes, len(x), exponent, 0), np.float32)
    assert not decoded[~np.isfinite(x)].any()
