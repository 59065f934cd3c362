"""A programmable switch is reached at run time in these ways, one file for each, with the encodings that they need."""
