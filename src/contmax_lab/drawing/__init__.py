"""Drawing: axes without windows and files of pictures, in the look of contmax.viz, which draws what is on them."""

from contmax.viz import DARK as DARK
from contmax.viz import LIGHT as LIGHT
from contmax.viz import THEMES as THEMES
from contmax.viz import Theme as Theme
from contmax.viz import drawn_in as drawn_in
from contmax_lab.drawing._picture import draw_panels as draw_panels
from contmax_lab.drawing._picture import new_axes as new_axes
from contmax_lab.drawing._picture import picture_width as picture_width
from contmax_lab.drawing._picture import plain_text as plain_text
from contmax_lab.drawing._picture import rendered as rendered
from contmax_lab.drawing._picture import rendered_twice as rendered_twice
