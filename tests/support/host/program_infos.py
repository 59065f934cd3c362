"""Programs as the transport tells of them."""

from jax_passing import _native
from jax_passing.collective.naming.sites import Site, canonical
from jax_passing.collective.naming.source_location import SourceLocation

PLACE = ("train.py:41:9 in step", "train.py:80:5 in main")


def identity(**changes):
    """Returns a sum's identity, as all hosts write it."""
    site = Site(SourceLocation(PLACE), 0, "", "passing", 26214400, ("['w']",), axes=("d",))
    fields = site.identity(name_stack="jit(step)", calls=[], leaves=["float32[3,4]"])
    return canonical(fields | {"nth": 0, **changes})


def program(*identities, name="jit_step, 2 devices", devices="0,1", fingerprint=""):
    identities = sorted(identities or [identity()])
    return _native.ProgramInfo(name=name, devices=devices, fingerprint=fingerprint, identities=identities)
