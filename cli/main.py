"""The application: registers the commands."""
