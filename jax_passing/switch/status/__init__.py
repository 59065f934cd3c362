"""A switch says here how it and its jobs are doing, to whoever asks."""
