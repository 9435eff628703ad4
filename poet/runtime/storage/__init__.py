"""Files of a training: the page file, saved states and their generations."""
