"""What of JAX isn't public (0.10.0 to 0.12.0): there is no public hook for a primitive with named axes.

Each module adapts one part of JAX. Names of `jax._src`, and files in it, stand nowhere else.
"""
