"""What kernels need and take on this machine, and whether they give the same bits block by block."""
