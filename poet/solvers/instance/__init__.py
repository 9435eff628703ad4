"""A problem as numbered ops and tensor versions, and what every part of the search shares."""
