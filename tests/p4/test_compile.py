"""The compilers take the programs, without a warning."""

import shutil
import subprocess

import pytest

from support.p4 import tna_model, tools
from support.p4.syntax import preprocessed


def test_p4test_accepts_v1model():
    tools.compile_program(tools.find_p4test(), tools.V1MODEL)


@pytest.mark.parametrize("lanes", [8, 16, 32, 64, 128, 256])
def test_bmv2_program_compiles(program, lanes):
    assert program(lanes).exists()


@pytest.mark.skipif(shutil.which("cpp") is None, reason="no cpp, the C preprocessor")
@pytest.mark.parametrize("program", [tools.V1MODEL, tna_model.PROGRAM], ids=["v1model", "tna"])
@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ("LANES=4", "LANES is a power of two, at least 8"),
        ("LANES=48", "LANES is a power of two, at least 8"),
        ("LANES=512", "LANES is"),
        ("SLOTS=32769", "SLOTS is at most 32768"),
        ("SLOTS=0", "SLOTS is at most 32768"),
    ],
)
def test_builds_that_cannot_work_say_so(program, definition, says):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        preprocessed(program, definition, "__TARGET_TOFINO__=1")
    assert says in failed.value.stderr
    preprocessed(program, "LANES=16", "SLOTS=32768", "__TARGET_TOFINO__=1")


@pytest.mark.parametrize("file", sorted(tools.P4.rglob("*.p4")), ids=lambda file: file.name)
def test_every_file_names_its_licence(file):
    assert file.read_text().startswith("// SPDX-License-Identifier: Apache-2.0\n")
