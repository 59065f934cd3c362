"""JAX's own collectives, and how others take their place for everybody else."""

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from jax._src import source_info_util
from jax._src.lax import parallel
from jax._src.lax.parallel import all_gather, all_to_all, axis_index, pmax, pmin, psum, psum_scatter

__all__ = ["all_gather", "all_to_all", "axis_index", "pmax", "pmin", "psum", "psum_scatter", "take_place", "unlisted"]

Collective = Callable[..., Any]


def take_place(name: str, other_than: Callable[[Collective], Collective]) -> None:
    """From now on, who calls the function `jax.lax.<name>` calls what `other_than` makes of it, also where it was taken
    from jax.lax before, by whatever name. JAX itself and this module call JAX's own, as do those whom that is given to.

    Nothing happens in a JAX without such a function.
    """
    theirs: Any = getattr(parallel, name, None)
    if theirs is None:
        return
    own = types.FunctionType(theirs.__code__, theirs.__globals__, name, theirs.__defaults__, theirs.__closure__)
    own.__kwdefaults__ = theirs.__kwdefaults__
    for module_name, module in list(sys.modules.items()):
        if (module_name == __name__ or module_name.startswith("jax._src.")) and vars(module).get(name) is theirs:
            setattr(module, name, own)
    theirs.__signature__ = inspect.signature(own)
    theirs.__module__ = "jax.lax"  # where pickle finds it
    # Everybody who holds the function holds this object, so it stays, with other code. That finds the other function
    # among its defaults. Threads that call it meanwhile find these with either code.
    theirs.__kwdefaults__ = {**(theirs.__kwdefaults__ or {}), "_other": other_than(own)}
    theirs.__code__ = _call_other.__code__


def _call_other(*args: Any, _other: Collective, **kwargs: Any) -> Any:
    return _other(*args, **kwargs)


def unlisted(path: str) -> None:
    """JAX looks for the user's line that makes an operation neither in this file nor among the functions above."""
    for each in (path, __file__):
        source_info_util.register_exclusion(each)
