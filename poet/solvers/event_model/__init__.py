"""The mixed-integer program over events: columns, constraint families, cuts, and back to a schedule."""
