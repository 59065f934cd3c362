"""The golden table, golden.toml: packet exchanges as bytes, one or more for each rule of docs/internals/protocol.md."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jax_passing.conformance.exchanges.exchange import Exchange, Step, jobs_of
from jax_passing.conformance.exchanges.model import Job


def read() -> list[Exchange]:
    """Reads all cases, in the order of the file."""
    table = tomllib.loads(files("jax_passing.conformance.exchanges").joinpath("golden.toml").read_text())
    named = table.pop("steps")
    return [_exchange(section, case, steps, named) for section, cases in table.items() for case, steps in cases.items()]


def _exchange(section: str, case: str, steps: Sequence[Any], named: Mapping[str, Sequence[Any]]) -> Exchange:
    own = steps[0] if isinstance(steps[0], dict) else {}
    jobs = jobs_of(own.get("jobs", "A2"))
    parts = [named[part] if isinstance(part, str) else [part] for part in steps if part is not own]
    return Exchange(
        section.replace("_", " "),
        case,
        jobs,
        tuple(_step(step, jobs) for part in parts for step in part),
        own.get("chunks", "any"),
    )


def _step(step: Sequence[str], jobs: Sequence[Job]) -> Step:
    source, packet, verdict, *answer = step
    if not answer:
        return Step(source, _bytes(packet), verdict)
    to, out, *bare = answer
    bare_to, bare_out = bare or ("", "")
    return Step(
        source, _bytes(packet), verdict, _addresses(to, jobs), _bytes(out), _addresses(bare_to, jobs), _bytes(bare_out)
    )


def _addresses(text: str, jobs: Sequence[Job]) -> tuple[str, ...]:
    workers = [str(worker) for job in jobs for worker in job.workers]
    everybody = tuple(worker for worker in workers if worker[0] == text)  # "A" stands for all workers of job A
    return everybody or tuple(text.split())


def _bytes(text: str) -> bytes:
    """Reads hexadecimal; "00000001*3" is that word three times, and "00000001..00000003" counts."""
    text = re.sub(r"([0-9a-f]+)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return bytes.fromhex(re.sub(r"(\w{8})\.\.(\w{8})", lambda found: _counted(found[1], found[2]), text))


def _counted(first: str, last: str) -> str:
    return "".join(f"{word:08x}" for word in range(int(first, 16), int(last, 16) + 1))
