"""Where tensors lie: how long each lives, one arena for them, places in the page file."""
