"""PyTorch's analyser reads the flight records in a folder: as its debug server does, from JSON, and as `torchfrtrace`
does, from pickles. Runs where torch is installed. Prints what it found, as JSON.

    read_by_torch.py FOLDER
"""

import contextlib
import io
import json
import pickle
import sys
import tempfile
from pathlib import Path

from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig


def main(folder: Path) -> None:
    newest = {}
    for file in sorted(folder.glob("record-*rank*.json"), key=lambda file: file.stem.rpartition("-")[2]):
        record = json.loads(file.read_bytes())
        newest[record["jax_passing"]["rank"]] = record
    details = {
        f"rank{rank}.json": {**record, "rank": rank, "host_name": "host"} for rank, record in sorted(newest.items())
    }
    arguments = JobConfig().parse_args([])
    db = build_db(details, arguments, newest[0]["version"])
    missing = sorted({rank for one in db.collectives for rank in one.missing_ranks or ()})
    with tempfile.TemporaryDirectory() as pickled, contextlib.redirect_stdout(io.StringIO()):
        for rank, record in newest.items():
            Path(pickled, f"record_{rank}").write_bytes(pickle.dumps(record))
        database = Path(pickled, "out", "database")
        database.parent.mkdir()
        fr_trace.main(["-p", "record_", "-o", str(database), pickled])
        _, again = pickle.loads(database.read_bytes())
    assert [one.pass_check for one in again.collectives] == [one.pass_check for one in db.collectives]
    print(json.dumps({"complete": sum(one.pass_check for one in db.collectives), "missing": missing}))


main(Path(sys.argv[1]))
