"""Image decoding: names only."""

from __future__ import annotations


class ImageReadMode:
    """The one mode that SGLang names when it is imported."""

    RGB = "RGB"


def decode_image(*args: object, **kwargs: object) -> None:
    raise NotImplementedError("images need torchvision, which is not installed for this server")


decode_jpeg = decode_image
