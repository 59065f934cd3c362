#!/usr/bin/env bash
# SkyPilot starts a task on each node of a Slurm cluster by srun, and then takes the variables of that step away, so that
# tasks may call srun themselves. So jax.distributed.initialize(), which finds its arguments in a step of Slurm's, finds
# none on the same cluster under SkyPilot; its arguments have to be made of SKYPILOT_NODE_RANK, SKYPILOT_NUM_NODES and
# SKYPILOT_NODE_IPS. Seen with skypilot 0.14.1 and jax 0.10.2; no Slurm is needed to see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$folder/sky" skypilot==0.14.1
cat >"$folder/look.py" <<'PYTHON'
from jax._src.clusters import ClusterEnv

found = [each.__name__ for each in ClusterEnv._cluster_types if not each.opt_in_only_method and each.is_env_present()]
print(*found or ["none"])
PYTHON
cat >"$folder/unset.py" <<'PYTHON'
import ast
import sys

for statement in ast.parse(open(sys.argv[1]).read()).body:  # its other modules want to be installed, too
    if isinstance(statement, ast.Assign) and statement.targets[0].id == "UNSET_STEP_SCOPED_SLURM_ENV":
        print(ast.literal_eval(statement.value))
PYTHON
unset="$("$folder/venv/bin/python" "$folder/unset.py" "$folder/sky/sky/skylet/executor/slurm.py")"
export JAX_PLATFORMS=cpu SLURM_JOB_ID=6 SLURM_STEP_ID=0 SLURM_STEP_NODELIST="node[1-2]" SLURM_STEP_NUM_TASKS=2
export SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_JOB_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE="1(x2)"
step=$("$folder/venv/bin/python" "$folder/look.py")
task=$(bash -c "$unset"$'\n'"exec '$folder/venv/bin/python' '$folder/look.py'")
echo "jax finds in a step of Slurm's: $step; after what SkyPilot puts before a task: $task"
[ "$step" = SlurmCluster ] && [ "$task" = none ] || {
  echo "the behaviour has changed"
  exit 1
}
