"""The compiled program, and a switch that runs it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.p4 import tools
from support.p4.device import Switch
from support.p4.v1model_model import InterpretedSwitch


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Compiles for so many lanes, once."""
    folder = tmp_path_factory.mktemp("p4")

    def compiled(lanes: int) -> Path:
        compiler = tools.find("p4c-bm2-ss", "PASSING_P4C")
        path = folder / f"passing{lanes}.json"
        if not path.exists():
            tools.compile_program(compiler, tools.V1MODEL, "--arch", "v1model", f"-DLANES={lanes}", "-o", str(path))
        return path

    return compiled


@pytest.fixture(scope="module", params=["interpreted", "bmv2"])
def by(request: pytest.FixtureRequest) -> str:
    """Names what runs the program: an interpreter of its text, which every machine has, or bmv2."""
    return request.param


@pytest.fixture(scope="module", params=[64], ids=lambda lanes: f"{lanes} lanes")
def switch(by: str, program, request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch | InterpretedSwitch]:
    if by == "interpreted":
        if shutil.which("cpp") is None:
            pytest.skip("no cpp, the C preprocessor")
        yield InterpretedSwitch(request.param)
        return
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    bmv2 = tools.find("simple_switch", "PASSING_BMV2")
    log = tmp_path_factory.mktemp("bmv2") / "log"
    started = Switch(bmv2, program(request.param), log)
    yield started
    started.close()
