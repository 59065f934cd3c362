"""The open Tofino compiler fits the program into both chips, all of it."""

import re
import subprocess
from pathlib import Path

import pytest

from support.p4 import tna_model, tools

TARGETS = {"tofino": ("tna", 1), "tofino2": ("t2na", 2)}  # architecture, generation


def assembler(compiler: str) -> str:
    """bfas, which stands beside the compiler or is on the PATH."""
    beside = Path(compiler).with_name("bfas")
    return str(beside) if beside.exists() else tools.find("bfas", "PASSING_BFAS")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr


DIGIT_BITS = {"0x": 4, "0o": 3, "0b": 1}
SELECTS = 5  # of the ingress parser: port, Ethernet type, and what is in IPv4, UDP and our own header
ETHERTYPES = {"IPv4": f"{0x0800:016b}", "ARP": f"{0x0806:016b}"}


def bits(pattern: str) -> str:
    """Expands the pattern that a state compares with, 0x08** for example, to a digit or * for each bit."""
    width = DIGIT_BITS[pattern[:2]]
    return "".join("*" * width if digit == "*" else f"{int(digit, 16):0{width}b}" for digit in pattern[2:])


def problem(assembly: str) -> str:
    """Says what the ingress parser in an assembler file can't tell apart; empty if nothing.

    Some compilers drop the values of `select` without a word (docs/data_planes/p4.md), and what is left fits well.
    """
    found = re.search(r"^parser ingress.*?(?=^\S|\Z)", assembly, re.M | re.S)
    assert found, "no parser"
    selects = len(re.findall(r"^\s+match: \[", found[0], re.M))
    compared = [bits(pattern) for pattern in re.findall(r"^\s+(0[xob][0-9a-f*]+):\s*$", found[0], re.M)]
    lost = [name for name, value in ETHERTYPES.items() if not any(value in each for each in compared)]
    if lost:
        return f"it compares no packet's type with that of {' and '.join(lost)}"
    return "" if selects >= SELECTS else f"{selects} states compare anything, not {SELECTS}"


WHOLE = """version:
  target: Tofino
parser ingress:
  start: $entry_point
  states:
    start:
      match: [ half ]
      0x0806:
        next: arp
      0x0800:
        load: { byte0 : 14 }
        next: ipv4
      0x****:
        next: end
    one:
      match: [ byte0, byte1 ]
      0b0100010100000001:
        next: two
    two:
      match: [ half ]
      0x1c03:
        next: three
    three:
      match: [ half ]
      0o115001:
        next: end
    four:
      match: [ byte0 ]
      0x**:
        next: end
parser egress:
  states:
    start:
      match: [ half ]
      0x86dd:
        next: end
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"0x0806": "0b0000100000000110"}, ""),
        ({"0x0806": "0x**"}, "it compares no packet's type with that of ARP"),
        ({"0x0806": "0x86dd", "0x0800": "0x**"}, "it compares no packet's type with that of IPv4 and ARP"),
        ({"      match: [ byte0 ]\n      0x**": "      *"}, "4 states compare anything, not 5"),
    ],
)
def test_lost_values_are_noticed(changes, expected):
    """A file as the compiler writes it, with made-up states, shows that lost values are noticed."""
    text = WHOLE
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    assert problem(text) == expected


@pytest.mark.parametrize("target", TARGETS)
def test_fits(target, tmp_path):
    compiler = tools.find("p4c-barefoot", "PASSING_P4C_BAREFOOT")
    architecture, generation = TARGETS[target]
    options = ["--target", target, "--arch", architecture, f"-D__TARGET_TOFINO__={generation}", "-o", str(tmp_path)]
    run(compiler, *options, str(tna_model.PROGRAM))
    # The compiler may accept more stages than there are: what the assembler makes is what fits.
    folder = tmp_path / "pipe"
    assert problem((folder / "passing.bfa").read_text()) == ""
    run(assembler(compiler), "--target", target, "-o", str(folder), str(folder / "passing.bfa"))
    assert (folder / f"{target}.bin").stat().st_size > 0
