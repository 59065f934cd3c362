"""A host joins by its control side, meets others, keeps its lease, and hears of failures. Decisions do no I/O."""
