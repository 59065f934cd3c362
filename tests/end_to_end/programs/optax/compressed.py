"""Sums gradients of several hosts by transformations of optax: compressed.py FOLDER [wires].

Their errors of all steps together are the mean of the hosts' last residuals; results are the same on all hosts;
powersgd does what the paper says, also behind gradients of zero; and orbax saves and restores each host's state in a
folder of its own.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

import jax_passing
from jax_passing.optax import compressed_psum, powersgd
from support.jax.optimizing import PARAMS, difference, exact_mean, gradients, largest, steps_of

STEPS = 6
QUANTISED = {"int16": 32767, "int8": 127, "int4": 7}
ROUNDING = 2.0**-19  # of all steps' roundings to float32 of numbers below 16

folder, wires = Path(sys.argv[1]), sys.argv[2:]
digest = hashlib.sha256()


def add(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())


def check(session: jax_passing.Session, name: str, transformation: Any, wire: str, check_vma: bool) -> Any:
    local = jax.local_device_count()
    hosts, devices = session.world_size, session.world_size * local
    mine = range(session.rank * local, (session.rank + 1) * local)
    step, state = steps_of(transformation, local, check_vma), transformation.init(PARAMS)
    missing: Any = jax.tree.map(lambda p: np.zeros(p.shape), PARAMS)
    G = 0.0
    for number in range(STEPS):
        means, state = step(gradients(number, mine), state, PARAMS)
        add(means)
        exact = exact_mean(number, devices)
        missing = jax.tree.map(lambda total, e, m: total + e - m, missing, exact, means)
        for host in range(hosts):
            rows = gradients(number, range(host * local, (host + 1) * local))
            G = max(G, largest(jax.tree.map(lambda row: row.sum(0), rows)))
    residuals = jax_passing.process_sum(jax.tree.map(np.asarray, state.residuals.leaves))
    assert difference(missing, jax.tree.map(lambda total: total / hosts, residuals)) < ROUNDING, name
    print(f"{name}: {largest(missing):.2e} is missing after {STEPS} steps")
    if name.startswith("powersgd"):
        add(state.factors)
    elif wire != "full":
        assert largest(missing) < 2 * hosts * G / (QUANTISED[wire] // hosts * devices) + ROUNDING
    return state, step, mine


def paper_powersgd(steps: list[list[np.ndarray]], Q: np.ndarray) -> list[np.ndarray]:
    """Returns the results of PowerSGD (Vogels, Karimireddy, Jaggi, 2019, algorithms 1 and 2) in float64, from each
    step's gradients of all hosts. A gradient of zero, of which the paper doesn't speak, leaves Q as it was."""
    errors, results = [np.zeros(steps[0][0].shape) for _ in steps[0]], []
    for each in steps:
        sent = [gradient + error for gradient, error in zip(each, errors, strict=True)]
        if not any(map(np.any, sent)):
            results.append(sent[0])
            continue
        P = np.linalg.qr(np.mean([M @ Q for M in sent], 0))[0]
        own = [M.T @ P for M in sent]
        Q = np.mean(own, 0)
        results.append(P @ Q.T)
        errors = [M - P @ R.T for M, R in zip(sent, own, strict=True)]
    return results


def compare_with_the_paper(session: jax_passing.Session) -> None:
    """Gradients are zero in the first step and in the third, and always in the first rows and columns."""
    local = jax.local_device_count()
    transformation, params = powersgd("d", rank=2, wire_dtype="full"), np.zeros((40, 48), np.float32)
    step, state = steps_of(transformation, local), transformation.init(params)

    def rows(number: int, host: int) -> np.ndarray:
        made = np.random.default_rng((number, host)).normal(size=(local, *params.shape)) * (number % 2)
        made[:, :8], made[:, :, :8] = 0, 0
        return made.astype(np.float32)

    of_hosts = [[rows(n, host).mean(0, dtype=np.float64) for host in range(session.world_size)] for n in range(STEPS)]
    first = np.asarray(state.factors, np.float64).T
    for number, expected in enumerate(paper_powersgd(of_hosts, first)):
        found, state = step(rows(number, session.rank), state, params)
        add(found)
        # Ours turns Q by 2^-12, which the random gradients' singular values, near each other, make more of.
        print(f"powersgd is off the paper by {difference(found, expected):.1e} of {largest(expected):.1e}")
        assert difference(found, expected) < 2**-8


with jax_passing.init(axis_name="d") as session:
    compare_with_the_paper(session)
    for wire in wires:
        for check_vma in (True, False):
            check(session, f"compressed_psum {wire}", compressed_psum("d", wire_dtype=wire), wire, check_vma)
        for start_step in (0, 2):
            transformation = powersgd("d", rank=2, wire_dtype=wire, start_step=start_step)
            state, step, mine = check(session, f"powersgd {wire}", transformation, wire, check_vma=start_step == 0)
    with ocp.StandardCheckpointer() as checkpointer:
        own = folder / f"rank-{session.rank}"
        checkpointer.save(own.absolute(), state)
        checkpointer.wait_until_finished()
        as_saved = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = checkpointer.restore(own.absolute(), as_saved)
    for saved, back in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(saved, back)
    add(step(gradients(STEPS, mine), restored, PARAMS)[0])
    print(f"digest {digest.hexdigest()}")
