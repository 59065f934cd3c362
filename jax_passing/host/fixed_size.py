"""`fixed_size` lets programs of an elastic session know the number of hosts when they are traced."""

from contextlib import AbstractContextManager

from jax_passing.host import scope, session


def fixed_size() -> AbstractContextManager[None]:
    """Returns a context in which programs know the number of hosts when they are traced, in elastic sessions, too.

        with jax_passing.fixed_size():     # until hosts are lost or come: leave it before `session.rejoin`
            state = train_step(state)

    So shapes can depend on that number, as those of `all_gather`, `psum_scatter` and `jax_passing.optax.sharded` do.
    The price is that programs are compiled again when hosts of another number go on. One that was compiled for another
    number raises ConfigError.

    Raises:
      UsageError: there is no session, or another thread called `init`.
      PassingError: this process was forked after `init`.
    """
    known = scope.required("fixed_size")
    current = session.current()
    size = known.world_size if current is None else current.world_size
    return scope.within(known._replace(world_size=size))
