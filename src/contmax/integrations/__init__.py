"""contmax with other packages: a drop-in for the `entmax` package, attention for `transformers` models."""

from contmax.integrations import entmax as entmax
