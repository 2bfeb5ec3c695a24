"""Image files as pixels."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax_lab.data._tables import Place
from contmax_lab.errors import LabError
from contmax_lab.packages import require

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# An explicit list, because Pillow would open EPS files by an external program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")


class BrokenImageError(LabError):
    """An image that cannot be read."""


def pixels(path: Path, size: int, place: Place | None = None) -> Tensor:
    """An image as bytes, (3, size, size): upright, on white where it is transparent, the first of several.

    Args:
        path: of the file.
        size: of the square that it is stretched to.
        place: where its name was read, for complaints; by default the file itself.

    Raises:
        BrokenImageError: if it cannot be read.
        LabError: if Pillow is not installed.
    """
    try:
        return _square(path, size)
    except ValueError as problem:
        told = place.problem(f"the image {path} {problem}") if place else Place(path).problem(str(problem))
        raise BrokenImageError(str(told)) from None


def file_pixels(content: bytes, size: int) -> Tensor:
    """`pixels` of the content of a file.

    Args:
        content: of a PNG, JPEG, BMP, GIF, WebP or TIFF file.
        size: of the square that it is stretched to.

    Raises:
        LabError: if it cannot be read.
    """
    try:
        return _square(io.BytesIO(content), size)
    except ValueError as problem:
        raise LabError(f"the image {problem}") from None


def _square(source: Path | io.BytesIO, size: int) -> Tensor:
    """The image; a ValueError says what is wrong if it cannot be read."""
    image_module = require("PIL.Image", "Reading images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that does not matter
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(source, formats=_FORMATS) as image:
                square = _upright(image).resize((size, size), image_module.Resampling.BILINEAR)
    except (image_module.DecompressionBombWarning, image_module.DecompressionBombError):
        most = f"{image_module.MAX_IMAGE_PIXELS:,}"
        raise ValueError(f"has more than {most} pixels; make it smaller") from None
    except Exception as error:  # a damaged file may raise anything in the code that decodes it
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        if "cannot identify image file" in reason:
            reason = "it is not an image, or is damaged"
        raise ValueError(f"cannot be read: {reason}") from None
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def _upright(image: Any) -> Any:
    """The image with three channels of 8 bits, upright, by the orientation that the camera has stored."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode in ("F", "I") or image.mode.startswith("I;"):
        # More than 8 bits: map the range of values to 0 … 255.
        values = np.asarray(image, dtype=np.float64)
        low, high = values.min(), values.max()
        if not np.isfinite(high - low):
            raise ValueError("a pixel is NaN or infinite")
        image = Image.fromarray((255 * (values - low) / (high - low or 1.0)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
