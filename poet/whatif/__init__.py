"""What-if: sweeps devices, RAM, deadlines, batch sizes and optimizers, and answers a team's questions."""
