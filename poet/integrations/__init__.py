"""Plans inside of other loops: a wrapped module, and a solver for the partitioner of ``torch.compile``."""
