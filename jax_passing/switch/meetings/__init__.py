"""At meetings hosts agree on the ranks of a job's next epoch."""
