"""Flight records are written to few files, and only ours are read."""

import os
import shutil
import stat
from types import SimpleNamespace

import pytest

from jax_passing.errors import ConfigError
from jax_passing.records import files
from support.records.made import host


def test_a_folder_gets_few_files_of_each_host(tmp_path):
    written = [files.write(host(0), "node/0-rank0", tmp_path / "new" / "folder") for _ in range(files.KEPT + 3)]
    others = [files.write(host(0), who, tmp_path / "new" / "folder") for who in ("node/0-rank01", "node/0-rank0-1")]
    kept = sorted((tmp_path / "new" / "folder").iterdir())
    assert kept == sorted([*written[-files.KEPT :], *others])
    assert written[0].name.startswith("record-node_0_rank0-")
    assert stat.S_IMODE(written[-1].stat().st_mode) == 0o600
    assert files.read(written[-1]) == host(0)


def test_the_default_folder_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = files.write(host(0), "a", None).parent
    assert folder == tmp_path / f"jax-passing-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="somebody else's"):
        files.write(host(0), "a", None)


def test_a_full_disk_gets_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    with pytest.raises(OSError, match="has only 1 MiB left"):
        files.write(host(0), "a", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jax_passing": {"kind": "?"}}', "[" * 100_000, "\xff"])
def test_what_isnt_a_record_is_refused(tmp_path, text):
    file = tmp_path / "file.json"
    file.write_text(text, "latin1")
    with pytest.raises(ConfigError, match="isn't a flight record of a host or a switch"):
        files.read(file)
    with pytest.raises(ConfigError, match="No such file"):
        files.read(tmp_path / "missing.json")


def test_a_pipe_and_a_device_are_no_records(tmp_path):
    pipe, device = tmp_path / "record-a.json", tmp_path / "record-b.json"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for file in (pipe, device):
        with pytest.raises(ConfigError, match="it is no regular file"):
            files.read(file)
