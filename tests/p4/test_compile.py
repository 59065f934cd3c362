"""The compilers take the programs, without a warning."""

import p4_tools
import pytest


def test_p4test_accepts_v1model():
    p4_tools.compile_program(p4_tools.find_p4test(), p4_tools.V1MODEL)


@pytest.mark.parametrize("lanes", [8, 16, 32, 64, 128, 256])
def test_bmv2_program_compiles(program, lanes):
    assert program(lanes).exists()
