"""Flight records: hosts and switches remember their last sums and events, write them to files, and why a job stands
still is read from these."""
