"""The demo's table of digits."""

from contmax_lab.contract import attention_table

DIGITS = attention_table(
    "digits",
    "Which digit? Attention over the plane",
    domain="image",
    about=(
        "1,797 handwritten digits of 8 × 8 pixels: 1,197 to train, 200 for validation, 400 to test, at random. The "
        "task images: convolutions, one attention over the 64 pixels or over the plane that they tile, a linear "
        "classifier; only the attention differs between the rows. (Alpaydin & Kaynak 1998; data inside the package "
        "scikit-learn.)"
    ),
)
