"""Lower bounds for large steps: the windows relaxation, its refinement, and suffix dynamic programs."""
