"""The replay of a schedule: compiled once into instructions, run on tensors at their places."""
