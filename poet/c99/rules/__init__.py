"""How runs of ops become calls of C functions: a file for each family of kernels."""
