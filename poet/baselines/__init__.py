"""Planners as published, one file each, for comparison by the same judge."""
