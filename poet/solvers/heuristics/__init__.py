"""Plans without an engine: list scheduling with eviction, greedy, and guided by a relaxation."""
