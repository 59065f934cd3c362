"""Workers of Ray Train, and actors, write into files of the folder that is given what becomes of their sessions."""

import sys
import traceback

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

FOLDER = sys.argv[1]
WORKERS = 2


def total(session):
    """Returns the sum of the ranks plus 1."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import jax_passing

    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    body = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return int(jax.jit(body)(jnp.int32(session.rank + 1)))


def with_session(open_session, file):
    try:
        with open_session() as session:
            switch = session.settings.switch is not None
            print(f"sum {total(session)}, world {session.world_size}, switch {switch}", file=file)
    except Exception:
        traceback.print_exc(file=file)


def work(config):
    import jax

    import jax_passing.ray

    rank = ray.train.get_context().get_world_rank()

    def for_jax():
        jax_passing.use_for_jax()
        print(jax.devices())
        return jax_passing.init(world_size=1)

    openings = {
        "ray": lambda: jax_passing.ray.init(axis_name="d"),
        "plain": lambda: jax_passing.init(axis_name="d"),
        "for_jax": for_jax,
    }
    with open(f"{FOLDER}/{config['name']}-{rank}", "w") as file:
        with_session(openings[config["name"]], file)


@ray.remote
class Actor:
    def work(self, rank, switch):
        import jax_passing
        import jax_passing.ray

        name = "alone" if switch is None else "actor"
        openings = {
            "alone": lambda: jax_passing.init(axis_name="d"),
            "not_train": lambda: jax_passing.ray.init(axis_name="d"),
        }
        if switch is not None:
            settings = {"job": "actors", "rank": rank, "world_size": WORKERS, "axis_name": "d"}
            openings = {"actor": lambda: jax_passing.init(switch, **settings)}
        for name, open_session in openings.items():
            with open(f"{FOLDER}/{name}-{rank}", "w") as file:
                with_session(open_session, file)


ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[3])
for name in ("ray", "plain", "for_jax"):
    scaling, run = ScalingConfig(num_workers=WORKERS), RunConfig(storage_path=f"{FOLDER}/results")
    JaxTrainer(work, train_loop_config={"name": name}, scaling_config=scaling, run_config=run).fit()
for switch in (None, sys.argv[2]):
    actors = [Actor.remote() for _ in range(WORKERS)]
    ray.get([actor.work.remote(rank, switch) for rank, actor in enumerate(actors)])
ray.shutdown()
