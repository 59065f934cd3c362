"""Runs JAX programs that know nothing of us on one host of several, and writes what they give: every.py FOLDER NAME...

Each NAME is a module beside this one. Its `results` yields names, arrays and bounds: an element may differ by as much
as the bound between two ways to carry JAX's collectives; 0 asks for the same bits."""

import importlib
import os
import sys
from pathlib import Path

import jax
import numpy as np


def parts(value: object) -> dict[str, np.ndarray]:
    """Returns this host's shards by where they lie in the array; copies of one must have the same bits."""
    if not isinstance(value, jax.Array):
        return {"": np.asarray(value)}
    found: dict[str, np.ndarray] = {}
    for shard in value.addressable_shards:
        where = ",".join(f"{piece.start or 0}:{'' if piece.stop is None else piece.stop}" for piece in shard.index)
        data = np.asarray(shard.data)
        assert found.setdefault(where, data).tobytes() == data.tobytes(), f"copies of {where} differ on this host"
    return found


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rank, hosts = int(os.environ["HOST_RANK"]), int(os.environ["HOST_COUNT"])
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=hosts, process_id=rank)
    for name in names:
        told: dict[str, np.ndarray] = {}
        for label, value, bound in importlib.import_module(name).results():
            for where, data in parts(value).items():
                # numpy's files know no bfloat16, nor shorter floats: their bits are kept, and their names.
                is_kept_as_bits = data.dtype.name.startswith(("bfloat", "float8", "float4"))
                kept = data.view(f"u{data.itemsize}") if is_kept_as_bits else data
                told[f"{label}|{where}|{data.dtype.name}|{float(bound)!r}"] = kept
        np.savez(folder / f"{name}.{rank}.npz", **told)  # type: ignore[arg-type]
        print(f"{name} gave {len(told)} arrays on {jax.devices()[0].client.platform_version}", flush=True)


main()
