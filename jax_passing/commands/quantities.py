"""Sizes and dtypes as one writes them on the command line."""

import re
from fractions import Fraction

import typer

from jax_passing.predict.constants import LANE_BYTES

_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([KMG]?)(I?B)?")
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30}
DTYPES = tuple(name for name in LANE_BYTES if name != "bool")
# As JAX abbreviates them (f32, bf16, i8, u8, c64), others do (fp16), and nccl-tests calls them.
_PREFIXES = {"f": "float", "fp": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}
_OTHER_NAMES = {"half": "float16", "float": "float32", "double": "float64"}


def parse_bytes(text: str) -> int:
    """Reads bytes from "4096", "64K", "64MB", "1.5G". K, M and G are powers of 1024, whether B or iB follows or not: so
    nccl-tests read them, which look at one letter."""
    match = _SIZE.fullmatch(text.strip().upper())
    size = int(Fraction(match[1]) * 2 ** _POWERS[match[2]]) if match else 0
    if size == 0:
        raise typer.BadParameter(
            f"{text!r}: expected bytes, for example 4096, 64K, 64MB or 1.5G (K, M and G are powers of 1024)"
        )
    return size


def parse_dtype(text: str) -> str:
    """Returns the name of a dtype that psum takes, except bool, given that or an abbreviation of it."""
    lower = text.strip().lower()
    short = re.fullmatch(r"([a-z]+)(\d+)", lower)
    name = _PREFIXES.get(short[1], short[1]) + short[2] if short else _OTHER_NAMES.get(lower, lower)
    if name not in DTYPES:
        raise typer.BadParameter(f"{text!r}: expected one of {', '.join(DTYPES)}, or its abbreviation (bf16, f32, u8)")
    return name
