"""Fenchel–Young losses over rows of logits, and of a linear layer over a large vocabulary."""
