"""A plan as plain C99: kernels of our own, the schedule as a table of calls, and the folder around them."""
