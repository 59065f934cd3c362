#!/usr/bin/env bash
# grain's DataLoader never reads the remainder of a data set that doesn't divide by the number of processes: of 10 records
# over 3 processes each gets 3, and record 3 is read by nobody, although drop_remainder=False (the default) promises
# shards of 4, 3 and 3. Seen with grain 0.2.18. A slice of a MapDataset reads all. jax_passing's page "Coming from
# lax.psum" says so where it names ShardOptions(session.rank, session.world_size).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grain==0.2.18
cat >"$folder/read.py" <<'PYTHON'
from importlib.metadata import version

import grain

RECORDS, PROCESSES = 10, 3

print("grain", version("grain"))
for drop_remainder in (False, True):
    read = []
    for process in range(PROCESSES):
        shard = grain.sharding.ShardOptions(process, PROCESSES, drop_remainder=drop_remainder)
        sampler = grain.samplers.IndexSampler(
            num_records=RECORDS, shard_options=shard, shuffle=False, num_epochs=1, seed=0
        )
        read.append(list(grain.DataLoader(data_source=range(RECORDS), sampler=sampler, worker_count=0)))
    missing = sorted(set(range(RECORDS)) - set(sum(read, [])))
    print(f"DataLoader, drop_remainder={drop_remainder}: {read}, never read: {missing}")
    assert [len(each) for each in read] == [3, 3, 3] and len(missing) == 1, "the behaviour has changed"
sliced = [list(grain.MapDataset.range(RECORDS)[process::PROCESSES]) for process in range(PROCESSES)]
print(f"MapDataset[process::{PROCESSES}]: {sliced}")
assert sorted(sum(sliced, [])) == list(range(RECORDS)), "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/read.py"
