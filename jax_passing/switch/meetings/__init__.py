"""At meetings hosts agree who goes on in a job."""
