"""Predicts how long sums and training take, on this cluster or on one of thousands of hosts that isn't here."""
