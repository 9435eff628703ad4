"""The process and the machine around it: memory, peaks, clocks, what the kernel says."""
