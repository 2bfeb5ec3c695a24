"""The explorer: a local page to look at densities, at maps of scores, and at where models look."""

from contmax_lab.explorer._pages import export as export
