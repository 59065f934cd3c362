"""`jax-passing run --print` says how a cluster would start the same hosts."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from jax_passing.commands.launch.starting import machines_of
from jax_passing.config import FOR_JAX, PREFIX
from jax_passing.protocol.packet import PORT

_SOMEWHERE = f"SWITCH:{PORT}"


def commands(arguments: Sequence[str], hosts: str, devices: int, switch: str | None, for_jax: bool) -> str:
    """Returns lines for a shell, with comments. The arguments are those of `launcher.run`. Raises ConfigError."""
    count, machines = machines_of(hosts)
    program = shlex.join(["python", *arguments])
    given = {PREFIX + "SWITCH": switch or _SOMEWHERE, "PYTHONHASHSEED": "0"}
    if for_jax:
        given[FOR_JAX] = "1"
    if devices > 1:
        given["JAX_NUM_CPU_DEVICES"] = str(devices)
    script = next((word for word in arguments if not word.startswith("-")), "job")
    own = {PREFIX + "JOB": Path(script).stem, PREFIX + "WORLD_SIZE": str(count), PREFIX + "RANK": "0"}
    nodes = f"--nodelist={','.join(machines)} " if machines else ""
    where = f"--host {','.join(machines)}" if machines else f"-np {count}"
    exported = "".join(f" -x {text}" for text in [*_assigned(given), "PATH"])
    lines = ["# The same program and environment have to be on all machines (docs/operate/clusters.md)."]
    if switch is None:
        lines += [
            f"# The switch, on a machine SWITCH that all hosts reach:\njax-passing switch --listen 0.0.0.0:{PORT}"
        ]
    lines += [
        "# The hosts, by Slurm:",
        f"{' '.join(_assigned(given))} srun {nodes}--nodes={count} --ntasks-per-node=1 --kill-on-bad-exit=1 {program}",
        "# or by Open MPI:",
        f"mpirun {where} --map-by node --bind-to none{exported} {program}",
        f"# or by hand, on each with its own rank, from 0 to {count - 1}; another run has another job's name:",
        f"{' '.join(_assigned(given | own))} {program}",
    ]
    return "\n".join(lines)


def _assigned(variables: dict[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
