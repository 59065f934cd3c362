"""By these variables JAX calls its collectives by us, and XLA has threads for them. This module imports no JAX, as JAX
reads them when it loads."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from jax_passing.config import FOR_JAX

LIBRARY = "MPITRAMPOLINE_LIB"
IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
MPI = "mpi"
THREADS = "NPROC"


def library() -> str:
    """Returns the path of the library that XLA is to load. Raises ImportError if the compiled part isn't there."""
    found = importlib.util.find_spec("jax_passing._native")
    if found is None or found.origin is None:
        raise ImportError("jax_passing is here as source code alone: build and install it (pip install .).")
    return found.origin


def conflict(environment: Mapping[str, str]) -> str | None:
    """Says which variable chooses something else, if one does."""
    for name, value in variables().items():
        if environment.get(name, value) != value:
            return f"{name} is {environment[name]!r}, and has to be {value!r}"
    return None


def variables() -> dict[str, str]:
    """Returns the variables that JAX and its MPItrampoline have to find. Raises ImportError, as `library` does."""
    return {LIBRARY: library(), IMPLEMENTATION: MPI}


def cpu_devices(environment: Mapping[str, str]) -> int:
    """Returns how many CPU devices JAX will have, as far as the environment says."""
    text = environment.get("JAX_NUM_CPU_DEVICES", "")
    if not text.isdecimal():  # XLA's older way, of which the last one counts
        flags = re.findall(r"--xla_force_host_platform_device_count=(\d+)", environment.get("XLA_FLAGS", ""))
        text = flags[-1] if flags else "1"
    return max(1, int(text))


def threads_needed(devices: int) -> int:
    """Returns how many threads (THREADS) XLA needs for this number of CPU devices, if it makes fewer by itself.

    It runs a program in a thread of its pool for each device, which waits in collectives, and starts the next programs
    in others. With as many threads as devices, programs that are dispatched one after the other, without waiting, stop
    for ever."""
    return 2 * devices


def at_start() -> None:
    """Sets the variables where JAX_PASSING_FOR_JAX is set, and prepares JAX for them and for our ranks.

    jax_passing_for_jax.pth calls this as the interpreter starts, because JAX reads them as it is imported."""
    is_on = os.environ.get(FOR_JAX) not in (None, "", "0")
    if is_on and (why := conflict(os.environ)) is not None:
        print(f"{FOR_JAX} has no effect: {why}. Unset one of the two.", file=sys.stderr)
        is_on = False
    if is_on:
        os.environ.update(variables())

    def prepare() -> None:
        importlib.import_module("jax_passing._compat.cluster").register()
        if is_on:
            importlib.import_module("jax_passing.for_jax.use_for_jax").check_world()

    sys.meta_path.insert(0, _AfterJax(prepare))


class _AfterJax(importlib.abc.MetaPathFinder):
    """Calls `prepare` when JAX has been imported, without importing it."""

    def __init__(self, prepare: Callable[[], None]):
        self._prepare = prepare
        self._is_looking = False

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "jax" or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:  # until then: a search for JAX may end without an import
                    sys.meta_path.remove(self)
                    self._prepare()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
