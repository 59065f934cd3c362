"""The fuzz targets in Python try the inputs that are kept, without a fuzzer. Those in C++ are tests of CMake's."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("source", sorted(HERE.glob("jax_passing/**/*_fuzz.py")), ids=lambda source: source.stem)
def test_kept_inputs(source):
    spec = importlib.util.spec_from_file_location(source.stem, source)
    target = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(target)
    with zipfile.ZipFile(HERE / "corpus" / f"{source.stem}.zip") as kept:
        assert kept.namelist()
        for name in kept.namelist():
            print(name)  # the last one is the one that failed
            target.test_one_input(kept.read(name))
