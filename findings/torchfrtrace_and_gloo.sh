#!/usr/bin/env bash
# PyTorch's analyser of flight records, torchfrtrace, can't read what gloo has recorded: it ends with a KeyError, as the
# record calls the group "" in pg_config and "0" in each entry. So does the page of PyTorch's debug server. With the
# name mended by hand it reads it, but only as a pickle: of the same record as JSON, which PyTorch writes as well, and
# which its debug server analyses, torchfrtrace ends with UnpicklingError. Seen with torch 2.13.0+cpu. jax_passing's
# flight records are JSON with these fields; its page on watching shows how to make pickles of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0+cpu tabulate numpy)
"${pip[@]}" 2>"$folder/log" || "${pip[@]}" --extra-index-url https://download.pytorch.org/whl/cpu
cat >"$folder/record.py" <<'PYTHON'
import json
import os
import pickle
import subprocess
import sys

os.environ |= {"TORCH_FR_BUFFER_SIZE": "16", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig

folder = sys.argv[1]
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(3))
print("torch", torch.__version__)
pickled = pickle.loads(c10d._dump_fr_trace())
record = json.loads(c10d._dump_fr_trace_json())
print("groups:", list(record["pg_config"]), "groups of entries:", [one["process_group"] for one in record["entries"]])


def outcome(name, content):
    os.mkdir(f"{folder}/{name}")
    with open(f"{folder}/{name}/trace_0", "wb") as file:
        file.write(content)
    command = [os.path.join(os.path.dirname(sys.executable), "torchfrtrace"), "-p", "trace_", f"{folder}/{name}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    said = run.stderr.strip().splitlines()[-1].partition(": ")[0] if run.returncode else "read"
    print(f"torchfrtrace of the {name}:", said)
    return said


def analysed(record):
    details = {"0": {**json.loads(json.dumps(record)), "rank": 0, "host_name": "host"}}
    return [one.collective_name for one in build_db(details, JobConfig().parse_args([]), record["version"]).collectives]


assert outcome("pickle as it is", pickle.dumps(pickled)) == "KeyError", "the behaviour has changed"
try:
    raise AssertionError(f"the behaviour has changed: {analysed(record)}")
except KeyError as error:
    print("the analyser of the parsed JSON: KeyError", error)
for one in (pickled, record):
    one["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0]"}}
assert outcome("mended pickle", pickle.dumps(pickled)) == "read", "the behaviour has changed"
assert outcome("mended JSON", json.dumps(record).encode()) == "_pickle.UnpicklingError", "the behaviour has changed"
print("the analyser of the mended JSON, parsed:", analysed(record))
PYTHON
timeout 200 "$folder/venv/bin/python" "$folder/record.py" "$folder" 2>"$folder/errors" ||
  { cat "$folder/errors" && exit 1; }
