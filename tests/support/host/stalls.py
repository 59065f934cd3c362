"""A stall, as the transport tells of it."""

from dataclasses import dataclass


@dataclass
class Stall:
    site_name: str = "psum(d) #0 of jit_step"
    execution: int = 7
    step: int = 0
    waits_for_gpu: bool = False
    waits_for_order: bool = False
    shard: int = 1
    slot: int = 3
    version: int = 1
    sequence: int = 9
