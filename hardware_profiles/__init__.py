"""One file per device; every figure carries its source."""
