"""Pictures of densities and of attention.

Drawn with matplotlib (``pip install contmax[viz]``), which is imported when a picture is drawn; each function takes
``ax=`` and returns the Axes, and ``ax.figure.savefig("picture.svg")`` writes vectors:

==============================  =======================================================================
:func:`plot_density`            a density on the line or in the plane, its support shaded
:func:`plot_text_attention`     weights and density over the tokens of a text
:func:`plot_image_attention`    weights of cells and ellipses of densities on an image
:func:`plot_alignment`          which source tokens each target token attends to
:func:`plot_series_attention`   weights and density over a series in time
==============================  =======================================================================

As pages of HTML, each a single file that a notebook can show: :func:`text_attention_html`,
:func:`image_attention_html`, :func:`alignment_html`. ``with drawn_in(DARK):`` gives pictures the look of the pages.
"""

from contmax.viz._alignment import alignment_html as alignment_html
from contmax.viz._alignment import plot_alignment as plot_alignment
from contmax.viz._density import plot_density as plot_density
from contmax.viz._density import plot_series_attention as plot_series_attention
from contmax.viz._image import image_attention_html as image_attention_html
from contmax.viz._image import plot_image_attention as plot_image_attention
from contmax.viz._page import HtmlPage as HtmlPage
from contmax.viz._text import plot_text_attention as plot_text_attention
from contmax.viz._text import text_attention_html as text_attention_html
from contmax.viz._theme import DARK as DARK
from contmax.viz._theme import LIGHT as LIGHT
from contmax.viz._theme import THEMES as THEMES
from contmax.viz._theme import Theme as Theme
from contmax.viz._theme import drawn_in as drawn_in
