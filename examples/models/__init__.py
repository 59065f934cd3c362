"""Models to cut into stages and to train on several hosts, each a file that stands by itself."""
