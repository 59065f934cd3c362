"""Transformations for optax that sum gradients over all hosts: with fewer bytes, or less often."""

try:
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "optax":
        raise
    raise ImportError(
        "jax_passing.optax makes transformations for optax, which isn't installed here: run `pip install optax`."
    ) from None

from jax_passing.optax.agree import agree as agree
from jax_passing.optax.all_reduce import all_reduce as all_reduce
from jax_passing.optax.compressed_psum import compressed_psum as compressed_psum
from jax_passing.optax.diloco import diloco as diloco
from jax_passing.optax.diloco import shared_params as shared_params
from jax_passing.optax.finish import finish as finish
from jax_passing.optax.local_sgd import local_sgd as local_sgd
from jax_passing.optax.parts import Part as Part
from jax_passing.optax.parts import deal as deal
from jax_passing.optax.parts import gather as gather
from jax_passing.optax.parts import part_specs as part_specs
from jax_passing.optax.powersgd import powersgd as powersgd
from jax_passing.optax.restart import restart as restart
from jax_passing.optax.set_to_zero import set_to_zero as set_to_zero
from jax_passing.optax.sharded import sharded as sharded
from jax_passing.optax.stale import stale as stale
