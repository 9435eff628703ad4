"""Whole runs over a file of samples: epochs, validation, limits, the confined process, the watcher."""
