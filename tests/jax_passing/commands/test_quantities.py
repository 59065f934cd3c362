import pytest
import typer

from jax_passing.collective.primitives.operands import SUPPORTED_DTYPES
from jax_passing.commands.quantities import parse_bytes, parse_dtype


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64K", 65536),
        ("64kb", 65536),
        ("64 MB", 64 * 2**20),
        ("64MiB", 64 * 2**20),
        ("1.5G", 3 * 2**29),
        (".5K", 512),
        ("9007199254740993", 2**53 + 1),
        ("10B", 10),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1", "1X", "64iB2", "1,5G", "M", ".", "1e6", "nan"])
def test_no_sizes(text):
    with pytest.raises(typer.BadParameter, match="expected bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "bfloat16"),
        ("f32", "float32"),
        ("FP16", "float16"),
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("i8", "int8"),
        ("u64", "uint64"),
        ("c64", "complex64"),
        *((name, name) for name in SUPPORTED_DTYPES if name != "bool"),
    ],
)
def test_dtypes(text, name):
    assert parse_dtype(text) == name


@pytest.mark.parametrize("text", ["", "bool", "float8", "f8", "8", "f", "b16", "str"])
def test_no_dtypes(text):
    with pytest.raises(typer.BadParameter, match="expected one of int8"):
        parse_dtype(text)
