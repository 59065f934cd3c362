"""Fuzzes: `python tests/fuzz/run.py BUILD [TARGET…]`, in a virtual environment that has jax_passing.

BUILD is a build folder of xla_ffi, made with -DPASSING_BUILD_FUZZERS=ON by clang; without TARGET all are run, two at a
time. They begin with the inputs that are kept in tests/fuzz/corpus.

    python tests/fuzz/run.py BUILD                  as many inputs as the check tries, the same ones in each run
    python tests/fuzz/run.py BUILD --minutes 120    so long for each target, and others in each run
    python tests/fuzz/run.py BUILD --minutes 1 --keep   then keeps what reached new code in tests/fuzz/corpus
    python tests/fuzz/run.py BUILD TARGET --add FILE…   runs nothing, and keeps these inputs, too

An input that fails is kept in BUILD/failures, and the command that tries it again is printed. Mend what it found, write
a test that says what was wrong, and add the input: the ordinary tests try all that is kept, one zip for each target.
"""

import argparse
import hashlib
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
JOBS = 2
INPUT_S_MAX = 20  # one that takes longer has failed
MEMORY_MIB_MAX = 2048
INPUT_BYTES_MAX = 1024
# The check tries so many inputs, the slowest target first. Inputs that are lists of operations have some twenty.
INPUTS = {
    "order_fuzz": 100_000,
    "all_reduce_fuzz": 60_000,
    "slot_pool_fuzz": 200_000,
    "datagram_batch_fuzz": 200_000,
    "probe_fuzz": 100_000,
}


def unpack(packed: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if packed.exists():
        zipfile.ZipFile(packed).extractall(folder)


def pack(folder: Path, packed: Path) -> None:
    """The same inputs make the same file. They aren't compressed, as replay.cc reads them, too."""
    inputs = {path.read_bytes() for path in folder.iterdir()}
    names = {hashlib.sha256(each).hexdigest()[:16]: each for each in inputs}
    assert len(names) == len(inputs)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(names):
            file.writestr(zipfile.ZipInfo(name), names[name])


class Run:
    """A run of one target."""

    def __init__(self, name: str, build: Path, minutes: float | None, seed: int):
        self.name, self._program = name, str(build / name)  # which takes libFuzzer's arguments
        self._failures = build / "failures" / name
        self._found = build / "found" / name
        self._kept, self._packed = build / "kept" / name, HERE / "corpus" / f"{name}.zip"
        unpack(self._packed, self._kept)
        if minutes is None:
            shutil.rmtree(self._found, ignore_errors=True)  # so that all runs are alike
        for folder in (self._failures, self._found):
            folder.mkdir(parents=True, exist_ok=True)
        much = f"-runs={INPUTS[name]}" if minutes is None else f"-max_total_time={round(60 * minutes)}"
        self._limits = (f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-max_len={INPUT_BYTES_MAX}")
        self._arguments = (much, f"-seed={seed}", f"-artifact_prefix={self._failures}/")

    def __call__(self) -> bool:
        folders = [str(self._found), str(self._kept)]
        began = time.monotonic()
        self._command = (self._program, *self._limits, *self._arguments, "-print_final_stats=1", *folders)
        done = subprocess.run(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.lines = done.stdout.splitlines()
        self.time_s = time.monotonic() - began
        self.inputs = self._last(r"stat::number_of_executed_units: (\d+)")
        self.places = self._last(r"\bcov: (\d+)")
        return done.returncode == 0

    def keep(self) -> None:
        """Keeps the fewest and shortest inputs found that reach all that was reached."""
        smaller = self._found.with_suffix(".merged")
        shutil.rmtree(smaller, ignore_errors=True)
        smaller.mkdir()
        # How often a place is reached doesn't count: there would be ten times as many.
        merge = (self._program, *self._limits, "-merge=1", "-use_counters=0", str(smaller))
        folders = (str(self._kept), str(self._found))
        subprocess.run([*merge, *folders], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        assert any(smaller.iterdir())
        pack(smaller, self._packed)

    def add(self, inputs: list[Path]) -> None:
        for path in inputs:
            shutil.copy(path, self._kept)
        pack(self._kept, self._packed)

    def failure(self) -> str:
        inputs = sorted(self._failures.iterdir(), key=lambda path: path.stat().st_mtime)
        again = shlex.join([self._program, str(inputs[-1])] if inputs else self._command)
        return "\n".join([*self.lines[-60:], f"{self.name} FAILED. Once more: {again}"])

    def _last(self, pattern: str) -> int:
        numbers = [int(match[1]) for line in self.lines if (match := re.search(pattern, line))]
        return numbers[-1] if numbers else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes what takes input from the network, and from files.")
    parser.add_argument("build", type=Path)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(INPUTS))
    parser.add_argument("--minutes", type=float, help="for each target, in place of a number of inputs")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", action="store_true", help="adds to the corpus what reached new code")
    parser.add_argument("--add", nargs="+", type=Path, metavar="FILE", help="adds these inputs to the target's corpus")
    given = parser.parse_args()
    build = given.build.resolve()
    assert {source.stem for source in HERE.glob("xla_ffi/**/*_fuzz.cc")} == INPUTS.keys()
    seed = given.seed if given.seed is not None else 1 if given.minutes is None else 1 + secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    runs = [Run(name, build, given.minutes, seed) for name in given.targets or INPUTS]
    if given.add:
        (run,) = runs  # those of one target
        run.add(given.add)
        return 0
    total, failed = 0, []
    print(f"{'target':24}{'inputs':>12}{'seconds':>10}{'places reached':>16}", flush=True)
    with ThreadPoolExecutor(JOBS) as pool:
        for run, passed in zip(runs, pool.map(lambda run: run(), runs), strict=True):
            print(f"{run.name:24}{run.inputs:12}{run.time_s:10.1f}{run.places:16}", flush=True)
            total += run.inputs
            failed += [] if passed else [run]
    for run in failed:
        print(run.failure())
    if given.keep:
        list(map(Run.keep, (run for run in runs if run not in failed)))
    print(f"{total} inputs, {len(failed)} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
