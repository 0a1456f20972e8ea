"""Names that SGLang imports at start; a text model calls none of them.

The published torchvision does not import beside the CPU build of torch, so a machine without a GPU has none.
"""

__version__ = "0.28.0"
