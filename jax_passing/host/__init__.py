"""A host's part of a job: the session, its ranks, and what each says to its switches."""
