"""The meetings at which hosts agree who goes on in a job."""
