"""The search itself: which model, engine and heuristic runs next, and what may be said of the answer."""
