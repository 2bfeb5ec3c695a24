"""contmax."""
