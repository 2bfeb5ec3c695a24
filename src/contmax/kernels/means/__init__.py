"""Means of basis functions under densities on the line and the plane, and weighted means of values."""
