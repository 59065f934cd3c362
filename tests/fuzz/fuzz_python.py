"""Runs a fuzz target that is a Python file, by atheris: `python fuzz_python.py TARGET.py COMMAND ARGUMENT…`

COMMAND: what libFuzzer calls to start such a run again; its arguments follow.
"""

import importlib.util
import sys
from pathlib import Path

import atheris

TESTS = Path(__file__).parents[1]


def main(target: str, *command: str) -> None:
    sys.path.append(str(TESTS))
    spec = importlib.util.spec_from_file_location("target", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with atheris.instrument_imports(include=["jax_passing", "tomllib"]):  # what it covers tells libFuzzer what is new
        spec.loader.exec_module(module)
    atheris.Setup(list(command), module.test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
