"""What a step is given, and what is counted of what it gives."""
