"""All checks of this machine, one after the other."""

import os
import platform
import resource
import sys
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from jax_passing import config, launchers
from jax_passing.config import address_text
from jax_passing.doctor import apart, cuda_driver, gpu, kernel, route, software, switch, trial
from jax_passing.doctor.findings import Finding, bad, good, left_out, warning
from jax_passing.errors import ConfigError
from jax_passing.for_jax.environment import cpu_devices
from jax_passing.protocol import keys

ROOT = Path("/")
_NCCL = "libnccl.so.2"
_NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_GPUS = "import sys; from jax_passing.doctor import examination; examination.tell_of_gpus(sys.argv[1])"
_ANY_JOB = "any"  # the trial's, where no job is named: without a key, names only have to differ


def examine(arguments: dict[str, Any]) -> Iterator[Finding]:
    """Makes all checks. `arguments`: settings by name, as of `jax_passing.init`; None: not given."""
    yield software.python(sys.version_info[:3], platform.python_implementation().lower())
    yield software.jax(software.installed(("jax", "jaxlib")))
    yield software.handlers(software.sum_of_one_host)
    yield software.hash_seed(os.environ)
    yield from _kernel()
    settings: dict[str, Any] = {}
    try:
        settings = config.settings_given(arguments)
        key = keys.read_key(settings.get("key_file"), keys.JOB)
        yield _given(settings)
    except ConfigError as error:
        yield bad("settings", str(error), "Correct it (docs/operate/settings.md).")
        yield left_out("switch", "the settings have to be right first")
        interface = None
    else:
        interface = yield from _switches(settings, key)
    yield from apart.findings(_GPUS, interface or "", gpu.trouble)


def tell_of_gpus(interface: str) -> None:
    """Tells the parent process of the GPUs. `interface`: which one leads to the switch; empty if that isn't known."""
    packages = software.installed(("jaxlib", *gpu.PLUGINS))
    apart.tell(gpu.findings(cuda_driver.Driver, ROOT, packages, _nccl_version, interface or None))


def _given(settings: dict[str, Any]) -> Finding:
    names = ", ".join(sorted(settings)) or "none"
    if not (missing := _missing(settings)):
        return good("settings", names)
    variables = ", ".join(config.PREFIX + name.upper() for name in missing)
    return warning(
        "settings",
        f"{names}, but no {', '.join(missing)}: jax_passing.init wants all of them",
        f"Set {variables}, unless a launcher gives them to each process (docs/operate/clusters.md).",
    )


def _missing(given: dict[str, Any]) -> list[str]:
    """Returns the settings that a host needs as well where a rank or a world size is given, and that aren't known."""
    if not given.keys() & {"rank", "world_size"} or given.get("world_size") == 1:
        return []
    has_job = "job" in given or launchers.run_name(os.environ, given.get("rank", 0)) is not None
    return [name for name in ("switch", "rank", "world_size") if name not in given] + ["job"] * (not has_job)


def _kernel() -> Iterator[Finding]:
    gso, gro = (kernel.has_udp_option(*option) for option in ((kernel.UDP_SEGMENT, 1440), (kernel.UDP_GRO, 1)))
    yield kernel.super_packets(gso, gro)
    yield kernel.buffers(kernel.granted_buffers(), kernel.buffer_limits(ROOT))
    yield kernel.cores(kernel.allowed_cores(), kernel.core_quota(ROOT), cpu_devices(os.environ))
    yield kernel.files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def _switches(settings: dict[str, Any], key: bytes | None) -> Generator[Finding, None, str | None]:
    """Returns the interface that leads to the first one, if that is known."""
    addresses = settings.get("switch", ())
    if not addresses:
        yield left_out(
            "switch", "none is given", "--switch HOST:PORT, or JAX_PASSING_SWITCH, has the way there checked."
        )
        return None
    interface = None
    for number, address in enumerate(addresses):
        name = address_text(*address)
        try:
            way = route.to(address)
        except OSError as error:
            yield bad(f"switch {name}", f"no way leads there: {error}", "Check the name, the address and the routes.")
            continue
        interface = way.interface if number == 0 else interface
        seen = trial.look(address, key, settings.get("job", _ANY_JOB))
        yield route.mtu(way, seen.lanes)
        yield route.rate(way, settings.get("link_gbit"))
        yield from switch.findings(seen, name)
    return interface


def _nccl_version() -> str:
    """Returns the version of NCCL in the wheel that JAX uses, or else the system's."""
    for wheel in _NCCL_WHEELS:
        try:
            distribution = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        for file in distribution.files or ():
            if file.name == _NCCL:
                return f"{cuda_driver.nccl_version(str(file.locate()))}, of {wheel} {distribution.version}"
    return f"{cuda_driver.nccl_version(_NCCL)}, the system's"
