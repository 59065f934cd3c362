"""Simulates sums and training on clusters that aren't here, of up to thousands of hosts."""
