"""Files: read within bounds, kept apart, written whole or not at all; what kind each is."""
