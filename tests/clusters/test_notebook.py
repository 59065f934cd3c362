"""The notebook of examples/ runs from its first cell to its last."""

import os
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient isn't installed: `tests/check.sh clusters` does that")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="ipykernel isn't installed: `tests/check.sh clusters` does that")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "four_hosts.ipynb"


def test_four_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # as where a venv is active
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)  # the file has no results
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(output.get("text", "") for output in cells[1].outputs)
    for rank in range(4):
        assert f"rank {rank} of 4: loss " in shown
    losses = eval(cells[2].outputs[0]["data"]["text/plain"])
    assert losses[-1] < 1e-3 < losses[0]
