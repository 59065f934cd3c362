"""Exchanges of packets, and a switch's right answers: the model, golden packets, random and limit cases."""
