"""What a plan is: the record that a device gets, what it is checked for, and its file."""
