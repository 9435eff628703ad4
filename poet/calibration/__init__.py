"""Measuring a machine as a device: times of ops, storage and power, in a raw file that a fit reads."""
