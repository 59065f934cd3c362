"""JAX's own tests with `jax.lax.psum` replaced by ours, in a world of one.

    python tests/manual/jax_suite.py JAX_CHECKOUT

The checkout (its folder `tests` is enough) must be of the installed version of JAX; it isn't ours to copy. Each file
runs twice, once as it is and once with ours, in a process of its own; what comes out differently is listed.
docs/internals/identity.md states the counts and explains the cases that differ.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

FILES = ("shard_map_test.py", "pmap_test.py", "batching_test.py")
LIMIT_S = 3600


class EveryAxis(tuple[str, ...]):
    """Declared names that hold any: in a world of one a sum over each axis shall take our way."""

    def __contains__(self, name: object) -> bool:
        return True


def run(which: str, file: str, report: str) -> int:
    """Runs one file in this process. The report is JUnit's XML, and beside it how often our primitives were bound."""
    import jax
    import pytest

    binds: collections.Counter[str] = collections.Counter()
    if which == "passing":
        replace_psum(jax, binds)
    # No configuration of ours and none of the checkout's: a warning isn't an error here.
    code = pytest.main([file, "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"])
    Path(report).with_suffix(".binds").write_text(json.dumps(binds))
    return int(code)


def replace_psum(jax: Any, binds: "collections.Counter[str]") -> None:
    import jax_passing
    from jax_passing.host import scope

    lax_psum = jax.lax.psum

    def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
        if axis_index_groups is not None:  # which ours doesn't have
            return lax_psum(x, axis_name, axis_index_groups=axis_index_groups)
        return jax_passing.psum(x, axis_name)

    jax_passing.init()
    session = scope.of_session()
    assert session is not None
    scope.begin(session._replace(axis_names=EveryAxis()))
    count_binds(binds)
    jax.lax.psum = psum


def count_binds(binds: "collections.Counter[str]") -> None:
    from jax_passing.collective.primitives import passing_psum

    for name, value in vars(passing_psum).items():
        if name.endswith("_p") and hasattr(value, "bind"):

            def bind(*args: Any, _name: str = name, _bind: Any = value.bind, **params: Any) -> Any:
                binds[_name] += 1
                return _bind(*args, **params)

            value.bind = bind


def outcomes(report: Path) -> dict[str, str]:
    """By test: "passed", "skipped", or the first line of what it failed with."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag == "skipped":
                outcome = "skipped"
            elif child.tag in ("failure", "error"):
                outcome = "failed: " + (child.get("message") or "").splitlines()[0][:200]
        found[f"{case.get('classname', '').split('.')[-1]}.{case.get('name')}"] = outcome
    return found


def compare(checkout: Path, files: list[str], keyword: str | None) -> int:
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            results = {}
            for which in ("lax", "passing"):
                report = Path(folder) / f"{which}-{file}.xml"
                command = [sys.executable, "-P", __file__, "--run", which, str(checkout / "tests" / file), str(report)]
                environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
                if keyword:
                    environment["PYTEST_ADDOPTS"] = f"-k '{keyword}'"
                done = subprocess.run(
                    command,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=LIMIT_S,
                )
                if not report.exists():
                    print(done.stdout[-4000:])
                    raise SystemExit(f"{file} with {which} ended with {done.returncode}, without a report")
                results[which] = outcomes(report)
                counts = collections.Counter(outcome.split(":")[0] for outcome in results[which].values())
                binds = json.loads(report.with_suffix(".binds").read_text())
                print(f"{file} with {which}: {dict(sorted(counts.items()))}" + (f", bound {binds}" if binds else ""))
            for test, outcome in results["lax"].items():
                ours = results["passing"].get(test, "missing")
                if ours.split(":")[0] != outcome.split(":")[0]:
                    differing += 1
                    print(f"  {test}\n    lax:     {outcome}\n    passing: {ours}")
    print(f"{differing} tests differ")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", dest="keyword", help="pytest's -k")
    parser.add_argument("--files", nargs="+", default=list(FILES))
    arguments = parser.parse_args()
    sys.exit(1 if compare(arguments.checkout.resolve(), arguments.files, arguments.keyword) else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        sys.exit(run(*sys.argv[2:]))
    main()
