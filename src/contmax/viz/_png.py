"""Images as PNG inside of a page, without a package for images."""

import base64
import struct
import zlib

import torch
from torch import Tensor

# A page is to be read, not to be printed at the size of a wall.
_LONGEST_SIDE = 640


def png_address(pixels: Tensor) -> str:
    """The image (H, W) or (H, W, C) of numbers from 0 to 1 as a data address, shrunk if it is large.

    Example:
        >>> png_address(torch.zeros(2, 3))[:22]
        'data:image/png;base64,'
    """
    colours = pixels.unsqueeze(-1) if pixels.dim() == 2 else pixels
    shrink = _LONGEST_SIDE / max(colours.shape[:2])
    if shrink < 1:
        high, wide = (max(round(side * shrink), 1) for side in colours.shape[:2])
        colours = torch.nn.functional.adaptive_avg_pool2d(colours.movedim(-1, 0), (high, wide)).movedim(0, -1)
    high, wide, channels = colours.shape
    lines = (255 * colours).round().to(torch.uint8).reshape(high, -1).contiguous().numpy()
    # Each line begins with the number of its filter, none.
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    parts = (
        _part(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, kind, 0, 0, 0)),
        _part(b"IDAT", zlib.compress(raw, 9)),
        _part(b"IEND", b""),
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
