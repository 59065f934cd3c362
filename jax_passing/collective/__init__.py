"""From the Python call to the FFI: the sums over devices and hosts, as JAX traces, differentiates and lowers them."""
