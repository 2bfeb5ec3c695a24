"""The order of the gallery: from densities to what people do with them."""

from pathlib import Path

_ORDER = [
    "densities",
    "sampling",
    "fit_misfit",
    "learned_alpha",
    "entmax_transformer",
    "text_span",
    "image_ellipse",
    "irregular_series",
    "mixture",
    "streaming_memory",
    "interval_regression",
    "conformal_sets",
]


class ReadingOrder:
    """What sphinx-gallery sorts the scripts by; one that has no place yet comes last."""

    def __init__(self, folder: str) -> None:
        pass

    def __call__(self, script: str) -> tuple[int, str]:
        """Its place in the list."""
        name = Path(script).stem.removeprefix("plot_")
        return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)

    def __repr__(self) -> str:
        return "ReadingOrder"
