#!/usr/bin/env bash
# Ray's JaxTrainer calls jax.distributed.initialize in its workers only where they use TPUs or GPUs. On CPUs each worker
# is JAX's only process, though Ray counts two: collectives of JAX stay inside of each, without an error. Seen with Ray
# 2.60.0 and jax 0.10.2. Where a switch is configured, jax_passing refuses such a process; its page on clusters shows
# how to give the rank to `jax_passing.init`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "ray[train]==2.60.0" jax==0.10.2 jaxlib==0.10.2
cat >"$folder/workers.py" <<'PYTHON'
import sys

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

folder = sys.argv[1]


def work():
    import jax

    context = ray.train.get_context()
    with open(f"{folder}/worker-{context.get_world_rank()}", "w") as file:
        file.write(f"Ray: {context.get_world_size()} workers; ")
        file.write(f"JAX: {jax.process_count()} process, initialized: {jax.distributed.is_initialized()}")


ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=f"{folder}/ray")
run = RunConfig(storage_path=f"{folder}/results")
JaxTrainer(work, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
ray.shutdown()
print("ray", ray.__version__)
for rank in range(2):
    with open(f"{folder}/worker-{rank}") as file:
        text = file.read()
    print(f"worker {rank}: {text}")
    assert text == "Ray: 2 workers; JAX: 1 process, initialized: False", "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu timeout 300 "$folder/venv/bin/python" "$folder/workers.py" "$folder" 2>"$folder/log" ||
  { tail -20 "$folder/log" && exit 1; }
