#!/usr/bin/env bash
# PyTorch writes its flight record as a pickle or as JSON, with the same fields, and its debug server analyses the JSON.
# But the analyser's command, torchfrtrace, reads pickles alone: of the JSON of the same job it ends with
# UnpicklingError, and a pickle from another machine can run code. Seen with torch 2.13.0+cpu and gloo. jax_passing's
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
forms = {"pickle": c10d._dump_fr_trace(), "json": c10d._dump_fr_trace_json()}
forms = {form: text if isinstance(text, bytes) else text.encode() for form, text in forms.items()}
print("torch", torch.__version__)
print("the same fields:", sorted(pickle.loads(forms["pickle"]).keys() & json.loads(forms["json"]).keys()))
for form, text in forms.items():
    os.mkdir(f"{folder}/{form}")
    with open(f"{folder}/{form}/trace_0", "wb") as file:
        file.write(text)
    command = [os.path.join(os.path.dirname(sys.executable), "torchfrtrace"), "-p", "trace_", f"{folder}/{form}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    last = run.stderr.strip().splitlines()[-1:] if run.returncode else "read"
    print(f"torchfrtrace of the {form}: {last}")
    assert (run.returncode == 0) == (form == "pickle"), "the behaviour has changed"
record = {**json.loads(forms["json"]), "rank": 0, "host_name": "host"}
db = build_db({"0": record}, JobConfig().parse_args([]), record["version"])
print("the analyser itself, of the parsed JSON:", [one.collective_name for one in db.collectives])
PYTHON
timeout 200 "$folder/venv/bin/python" "$folder/record.py" "$folder" 2>"$folder/errors" || { cat "$folder/errors" && exit 1; }
