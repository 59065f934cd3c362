"""The verdicts on a packet have the same names, in the same order, wherever they are listed."""

import re
from pathlib import Path

import pytest

from jax_passing.protocol.verdicts import VERDICTS

ROOT = Path(__file__).parents[2]
LISTS = {
    "p4/types.p4": (r"enum bit<8> verdict_t {(.*?)}", VERDICTS),
    "xla_ffi/ebpf/slots.h": (r"enum verdict {(.*?)}", (*VERDICTS[: VERDICTS.index("forwarded")], "verdicts")),
    "xla_ffi/switch/verdict.h": (r"enum class Verdict : uint8_t {(.*?)}", (*VERDICTS, "forged")),
}


@pytest.mark.parametrize("file", LISTS)
def test_a_list(file):
    pattern, expected = LISTS[file]
    enumeration = re.search(pattern, (ROOT / file).read_text(), re.DOTALL)[1]
    names = re.findall(r"^\s*(\w+)", re.sub(r"//.*", "", enumeration), re.MULTILINE)
    plain = [re.sub(r"(?<!^)([A-Z])", r"_\1", name[1:]) if name[0] == "k" else name for name in names]
    assert tuple(name.lower() for name in plain) == expected


def test_the_model_has_no_others():
    model = (ROOT / "jax_passing/conformance/exchanges/model.py").read_text()
    said = re.findall(r'(?:Answer|_to_all)\(\s*"(\w+)"(?: if again else "(\w+)")?', model)
    assert {name for pair in said for name in pair if name} == set(VERDICTS)
