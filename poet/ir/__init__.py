"""The training graph: ops, values and buffers of one step, operators, losses, optimizers."""
