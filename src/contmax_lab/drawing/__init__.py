"""Drawing: one look for all pictures, axes without windows, and what several tasks draw in the same way."""

from contmax_lab.drawing._picture import draw_panels as draw_panels
from contmax_lab.drawing._picture import new_axes as new_axes
from contmax_lab.drawing._picture import plain_text as plain_text
from contmax_lab.drawing._picture import rendered as rendered
from contmax_lab.drawing._plane import draw_cells as draw_cells
from contmax_lab.drawing._plane import draw_ellipses as draw_ellipses
from contmax_lab.drawing._theme import DARK as DARK
from contmax_lab.drawing._theme import LIGHT as LIGHT
from contmax_lab.drawing._theme import THEMES as THEMES
from contmax_lab.drawing._theme import Theme as Theme
from contmax_lab.drawing._theme import drawn_in as drawn_in
from contmax_lab.drawing._time import draw_over_time as draw_over_time
from contmax_lab.drawing._time import draw_series as draw_series
from contmax_lab.drawing._words import draw_words as draw_words
from contmax_lab.drawing._words import name_words as name_words
from contmax_lab.drawing._words import picture_width as picture_width
