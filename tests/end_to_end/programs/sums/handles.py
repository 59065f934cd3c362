"""Sums that are started in one place and finished in another, on several hosts, compared with `psum` bit for bit.

handles.py sums SEED FOLDER     all that works; FOLDER is one that all hosts share
handles.py errors               all that is an error
"""

import queue
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import errors

mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
Tree = Any


def mapped(body: Callable[..., Tree], in_specs: Any = P("d"), out_specs: Any = P(), check_vma: bool = False) -> Any:
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def apart(tree: Tree) -> Tree:
    return jax_passing.psum_done(jax_passing.psum_start(tree, "d"))


def at_once(tree: Tree) -> Tree:
    return jax_passing.psum(tree, "d")


def same(ours: Tree, theirs: Tree) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True), ours, theirs)


def values(random: np.random.Generator) -> dict[str, np.ndarray]:
    scale = 2.0 ** random.integers(-9, 9)
    rows = mesh.size
    return {
        "w": (random.normal(size=(rows, 5000)) * scale).astype(np.float32),
        "b": random.normal(size=(rows, 7)).astype(np.float16),
        "i": random.integers(-(2**31), 2**31, (rows, 3), dtype=np.int32),
    }


def in_one_program(tree: Tree, check_vma: bool) -> None:
    def between(psum_start: Any, psum_done: Any) -> Any:
        def body(tree: Tree) -> Tree:
            first, second = psum_start(tree), psum_start({"w": tree["w"] * 2})
            third = at_once({"b": tree["b"] * 2})
            return psum_done(second), third, psum_done(first), at_once(tree["i"])

        return body

    start, done = (lambda tree: jax_passing.psum_start(tree, "d")), jax_passing.psum_done
    same(mapped(apart, check_vma=check_vma)(tree), mapped(at_once, check_vma=check_vma)(tree))
    same(
        mapped(between(start, done), check_vma=check_vma)(tree),
        mapped(between(at_once, lambda x: x), check_vma=check_vma)(tree),
    )


def in_a_scan(tree: Tree, check_vma: bool) -> None:
    """In each step the sum of the step before it is finished, and the next one started."""

    def program(start: Any, done: Any, nothing: Any) -> Any:
        def body(x: jax.Array, factors: jax.Array) -> Tree:
            def step(carry: Tree, factor: jax.Array) -> Tree:
                return start(x * factor), done(carry)

            last, sums = jax.lax.scan(step, nothing(x), factors)
            return sums, done(last)

        return mapped(body, (P("d"), P()), check_vma=check_vma)

    factors = np.float32([1, 2, 0.5, 4])  # whose products are exact
    ours = program(
        lambda x: jax_passing.psum_start(x, "d"), jax_passing.psum_done, lambda x: jax_passing.no_sum(x, "d")
    )
    theirs = program(at_once, lambda x: x, lambda x: jnp.zeros(x.shape, x.dtype))
    same(ours(tree["w"], factors), theirs(tree["w"], factors))


def across_programs(random: np.random.Generator, rank: int, check_vma: bool) -> None:
    """Hosts finish what they started in different orders."""
    start = mapped(lambda tree: jax_passing.psum_start(tree, "d"), check_vma=check_vma)
    done = jax.jit(mapped(jax_passing.psum_done, P(), check_vma=check_vma), donate_argnums=0)
    psum = mapped(at_once, check_vma=check_vma)
    trees = [values(random) for _ in range(6)]
    handles = [start(tree) for tree in trees]
    sums = [psum(tree) for tree in trees]
    for i in np.random.default_rng(rank).permutation(len(trees)):
        same(done(handles[i]), sums[i])


def in_two_threads(tree: Tree) -> None:
    """One thread starts sums; another one finishes them, and has sums of its own meanwhile. Only programs on one device
    may come from several threads."""
    one = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))

    def program(body: Callable[..., Tree], in_specs: Any = P("d")) -> Any:
        return jax.jit(jax.shard_map(body, mesh=one, in_specs=in_specs, out_specs=P(), check_vma=False))

    start, done, psum = (
        program(lambda x: jax_passing.psum_start(x, "d")),
        program(jax_passing.psum_done, P()),
        program(at_once),
    )
    own = program(lambda x: jax_passing.psum(x, "d"))
    trees = [jax.tree.map(lambda leaf, i=i: leaf * leaf.dtype.type(i), tree) for i in range(8)]
    expected = [psum(each) for each in trees]
    started: queue.Queue[Any] = queue.Queue()

    def finish() -> None:
        with jax_passing.stream("finishing"):
            for each, total in zip(trees, expected, strict=True):
                same(done(started.get(timeout=60)), total)
                same(own(each["i"]), total["i"])

    with ThreadPoolExecutor(1) as threads:
        finished = threads.submit(finish)
        for each in trees:
            started.put(start(each))
        finished.result(120)


def on_a_narrow_wire(random: np.random.Generator, hosts: int) -> None:
    x = np.clip(random.normal(size=(mesh.size, 1000)), -4, 4).astype(np.float32)  # smaller sums are precise
    ours = mapped(lambda x: jax_passing.psum_done(jax_passing.psum_start(x, "d", wire_dtype="int8")))
    error = np.abs(np.asarray(ours(x)) - np.asarray(mapped(at_once)(x))).max()
    step = 2 * 4 * mesh.size / (127 // hosts)  # a scale is at most twice as large as it has to be
    assert 0 < error < hosts * step, error


def without_waiting(tree: Tree, folder: Path, rank: int, hosts: int) -> None:
    """The last host starts its sum only when the others' programs have started theirs, and run on."""
    start = mapped(lambda tree: (jax_passing.psum_start(tree, "d"), tree["w"].sum()))
    done, psum = mapped(jax_passing.psum_done, P()), mapped(at_once)
    expected = psum(tree)
    returned = [folder / f"returned {rank}" for rank in range(hosts - 1)]
    until = time.monotonic() + 60
    while rank == hosts - 1 and not all(path.exists() for path in returned):
        assert time.monotonic() < until
        time.sleep(0.01)
    handle, _ = jax.block_until_ready(start(tree))
    np.asarray(mapped(lambda x: x * 2, out_specs=P("d"))(tree["w"]))  # another program, meanwhile
    if rank < hosts - 1:
        returned[rank].touch()
    same(done(handle), expected)


def sums(seed: int, folder: Path) -> None:
    with jax_passing.init(axis_name="d", deadline_s=60) as session:
        random = np.random.default_rng((seed, session.rank))
        for check_vma in (False, True):
            in_one_program(values(random), check_vma)
            in_a_scan(values(random), check_vma)
            across_programs(random, session.rank, check_vma)
        in_two_threads(values(random))
        on_a_narrow_wire(random, session.world_size)
        without_waiting(values(random), folder, session.rank, session.world_size)
    print("all sums are those of psum")


def caught(name: str, action: Callable[[], Any]) -> None:
    try:
        with errors.translate():
            jax.block_until_ready(action())
    except errors.PassingError as error:
        print(f"{name}: {type(error).__name__}: {error}")
    else:
        print(f"{name}: no error")


def wait_for_failure(session: jax_passing.Session) -> None:
    until = time.monotonic() + 60
    while session.error is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    raise session.error


def end(session: jax_passing.Session) -> None:
    try:
        session.__exit__(None, None, None)
    except errors.PassingError as error:
        print(f"ended by {type(error).__name__}")


def all_errors() -> None:
    x = np.ones((mesh.size, 5), np.float32)
    start = mapped(lambda x: jax_passing.psum_start(x, "d"))
    done = mapped(jax_passing.psum_done, P())

    session = jax_passing.init(axis_name="d", deadline_s=3)
    late = session.rank == session.world_size - 1
    if late:
        caught("one host is late", lambda: wait_for_failure(session))
    else:
        handle = jax.block_until_ready(start(x))
        caught("one host is late", lambda: done(handle))
    end(session)

    session = jax_passing.init(axis_name="d", deadline_s=30)
    handles = [start(x) for _ in range(64)]
    if session.rank > 0:
        caught("too many", lambda: [done(handle) for handle in handles] and wait_for_failure(session))
    else:
        jax.block_until_ready(handles)  # executions may overtake each other
        caught("too many", lambda: start(x))
    end(session)

    session = jax_passing.init(axis_name="d", deadline_s=30, world_size_min=1)
    handle = jax.block_until_ready(start(x))
    jax_passing.barrier()  # or the other host couldn't start it any more
    session.rejoin(0)
    caught("former", lambda: done(handle))
    print("went on with", float(done(start(x))[0, 0]))
    end(session)


if sys.argv[1] == "sums":
    sums(int(sys.argv[2]), Path(sys.argv[3]))
else:
    all_errors()
