"""Only this package uses what isn't public of JAX (0.10.0 to 0.12.0): primitives with named axes have no public hook.

Each module adapts one part of JAX. patches.py says what is changed of it, and when.
"""
