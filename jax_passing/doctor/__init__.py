"""Is this machine fit for a job? Checks of its software, kernel, network and GPUs, each with a remedy."""
