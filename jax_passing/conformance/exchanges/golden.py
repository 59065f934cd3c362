"""The golden table, golden.toml: packet exchanges as bytes, one or more for each rule of docs/internals/protocol.md."""

import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files

from jax_passing.conformance.exchanges.exchange import Exchange, Step, jobs_of
from jax_passing.conformance.exchanges.model import Job


def read() -> list[Exchange]:
    """Reads all cases, in the order of the file."""
    table = tomllib.loads(files("jax_passing.conformance.exchanges").joinpath("golden.toml").read_text())
    return [_exchange(section, case) for section, cases in table.items() for case in cases]


def _exchange(section: str, case: dict[str, object]) -> Exchange:
    jobs = jobs_of(str(case.get("jobs", "A2")))
    steps = case["steps"]
    assert isinstance(steps, list)
    return Exchange(
        section.replace("_", " "),
        str(case["case"]),
        jobs,
        tuple(_step(step, jobs) for step in steps),
        str(case.get("chunks", "any")),
    )


def _step(step: Sequence[str], jobs: Sequence[Job]) -> Step:
    source, packet, verdict, *answer = step
    if not answer:
        return Step(source, _bytes(packet), verdict)
    to, out = answer
    workers = [str(worker) for job in jobs for worker in job.workers]
    everybody = [worker for worker in workers if worker[0] == to]  # "A" stands for all workers of job A
    return Step(source, _bytes(packet), verdict, tuple(everybody or [to]), _bytes(out))


def _bytes(text: str) -> bytes:
    """Reads hexadecimal; "00000001*3" is that word three times."""
    return bytes.fromhex(re.sub(r"([0-9a-f]+)\*(\d+)", lambda found: found[1] * int(found[2]), text))
