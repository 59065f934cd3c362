"""Exchanges of packets, and what a switch must answer: the model, golden packets, random and limit cases."""
