"""How to reach a programmable switch at run time, one file for each way, and the encodings that they need."""
