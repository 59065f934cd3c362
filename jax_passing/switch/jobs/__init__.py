"""The jobs of a switch: admission, epochs, slots, waits."""
