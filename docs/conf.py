"""How Sphinx builds these pages: `make docs`. Everything is made here; no page asks another server for anything."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from contmax_lab.explorer import export

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "contmax"
author = "the contmax authors"
copyright = author
version = release = version_of("contmax")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "docstrings",
]
exclude_patterns = ["_extensions", "gallery", "**sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# A link that leads nowhere is a warning, and `make docs` makes warnings errors.
nitpicky = True
nitpick_ignore_regex = [
    # Types of other projects, whose pages cannot be asked for offline.
    (r"py:.*", r"(torch|numpy|np|nn|matplotlib|transformers|collections|typing|Tensor|Axes).*"),
]

# Blocks without a language are commands and formulas in plain text. `names` in docstrings are code.
highlight_language = "text"
default_role = "code"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # shapes stand in the docstrings; annotations of them fill half a page
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = ["Shape"]
napoleon_use_rtype = False
napoleon_attr_annotations = False
autodoc_default_options = {"members": True, "exclude-members": "extra_repr, reset_parameters"}

html_math_renderer = "mathml"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "within_subsection_order": "reading_order.ReadingOrder",
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "capture_repr": ("_repr_html_", "__repr__"),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "only_warn_on_example_error": False,
    "abort_on_example_error": False,
    "min_reported_time": 5,
    "remove_config_comments": True,
    "nested_sections": False,
}

html_theme = "furo"
html_title = "contmax"
html_static_path = ["_static"]
html_css_files = ["contmax.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f5", "color-brand-content": "#7cc4f5"},
}


def setup(app):
    """The rooms of the explorer that need no server stand beside the pages that show them."""
    app.connect("build-finished", lambda app, problem: problem or export(app.outdir / "explore"))
