"""Functions on images, second version: names only."""

from .. import InterpolationMode

__all__ = ["InterpolationMode"]
