"""The command line, one file for each subcommand, and what those do."""
