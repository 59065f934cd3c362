"""Gathers, scatters and broadcasts whose rows are longer than a packet, beside those of JAX on one mesh of all devices'
values, and the bytes that they take.

    rows.py local|global

local: each host has a mesh of its own devices; global: one mesh over jax.distributed.
"""

import os
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

ROW = 160_000  # float32 of a row
OTHERS = 0.06  # exponents, headers and chunks that two hosts' rows share, of each row


def main() -> None:
    spans = sys.argv[1] == "global"
    if spans:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ["COORDINATOR"], int(os.environ["JAX_PASSING_WORLD_SIZE"]), int(os.environ["JAX_PASSING_RANK"])
        )
    with jax_passing.init(axis_name=() if spans else "d") as session:
        local, rank, hosts = jax.local_device_count(), session.rank, session.world_size
        count = local * hosts
        mesh = jax.sharding.Mesh(jax.devices() if spans else jax.local_devices(), ("d",))
        values = np.random.default_rng(5).normal(size=(count, count, ROW)).astype(np.float32)
        values[0, 1, 7], values[1, 1, ROW - 1], values[count - 1, count - 1, 5] = np.nan, np.inf, -np.inf
        mine = slice(rank * local, (rank + 1) * local)
        given = jax.make_array_from_process_local_data(jax.sharding.NamedSharding(mesh, P("d")), values[mine])

        def run(function: Any) -> tuple[list[np.ndarray], dict[str, int]]:
            """Returns the results of this host's devices, and the bytes that it has sent and received."""
            body = lambda x: function(x[0])[None]  # noqa: E731
            mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
            before = dict(session.stats())
            result = jax.block_until_ready(mapped(given))
            moved = {name: session.stats()[name] - before[name] for name in before}
            shards = sorted(result.addressable_shards, key=lambda shard: shard.index[0].start)
            return [np.asarray(shard.data)[0] for shard in shards], moved

        def check(name: str, moved: dict[str, int], sent: float, received: float) -> None:
            """`sent` and `received`: in rows of all this host's devices together. A busy host sends some again."""
            row, again = local * ROW * 4, 9000 * moved["packets_resent"]
            for what, rows in (("bytes_sent", sent), ("bytes_received", received)):
                assert moved[what] < row * (rows + OTHERS * hosts) + again, (name, what, moved[what], row, again)

        sums, _ = run(lambda x: jax_passing.psum(x, "d"))
        parts, moved = run(lambda x: jax_passing.psum_scatter(x, "d"))
        for index, (whole, part) in enumerate(zip(sums, parts, strict=True), rank * local):
            np.testing.assert_array_equal(part.view(np.int32), whole[index].view(np.int32))
        check("psum_scatter", moved, hosts - 1, 1)

        # Each device has its own row of the first device's values.
        own = lambda x: x[jax_passing.axis_index("d")]  # noqa: E731
        gathered, moved = run(lambda x: jax_passing.all_gather(own(x), "d"))
        expected = values[np.arange(count), np.arange(count)]
        for one in gathered:
            np.testing.assert_array_equal(one.view(np.int32), expected.view(np.int32))
        heard_in_vain = hosts > 2  # what several hosts need comes by multicast, to the one that gave it, too
        check("all_gather", moved, 1, hosts - 1 + heard_in_vain)

        root = count - 1
        copies, moved = run(lambda x: jax_passing.broadcast(x[:local], "d", root=root))
        for one in copies:
            np.testing.assert_array_equal(one.view(np.int32), values[root, :local].view(np.int32))
        is_root = rank == root // local
        check("broadcast", moved, is_root, not is_root or heard_in_vain)
    print("rows done")


if __name__ == "__main__":
    main()
