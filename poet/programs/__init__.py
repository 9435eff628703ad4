"""A plan's schedule as a program for another runtime: of `torch.export`, or of ExecuTorch."""
