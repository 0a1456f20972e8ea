"""Images in a row of prompt data: the columns that hold them, and the places in the messages where they stand."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlparse

from slime_stages.data.multimodal import open_image
from slime_stages.errors import DataError
from slime_stages.prompts.files import SourceRow
from slime_stages.prompts.source import MISSING, Messages, lookup, shorten

IMAGE = "image"
PLACEHOLDER = re.compile(f"(<{IMAGE}>)")
LOCATIONS = (IMAGE, "bytes", "path", "url")
"""Keys of an item that say where the image is, the first that has a value."""


def place_media(row: SourceRow, messages: Messages, keys: Mapping[str, str]) -> tuple[Messages, list[bytes]]:
    """The messages with an item `{"type": "image"}` for each placeholder, and the images in the order of those.

    A text becomes a list of items. In contents that are lists already, an image item without an image takes the
    column's next. DataError if the counts differ, and for an image that cannot be read.
    """
    column = keys[IMAGE]
    items = column_items(row, column)
    places = _Places(row, iter(items))
    placed = [{**message, "content": places.fill(message.get("content"))} for message in messages]
    if places.asked != len(items):
        raise DataError(
            f"{row.place}: the prompt has a place for {places.asked} images, but `{column}` holds {len(items)}",
            hint="write one <image> for each of them",
        )
    return placed, places.images


def column_items(row: SourceRow, column: str) -> list[Any]:
    """The column's images; a single one is a list of one, and null or no column is none."""
    found = lookup(row.values, column)
    if found is None or found is MISSING:
        return []
    return found if isinstance(found, list) else [found]


class _Places:
    """Fills the places of one prompt in turn."""

    def __init__(self, row: SourceRow, items: Iterator[Any]) -> None:
        self.asked = 0
        self.images: list[bytes] = []
        self._row = row
        self._items = items

    def fill(self, content: Any) -> Any:
        if isinstance(content, str):
            parts = [part for part in PLACEHOLDER.split(content) if part]
            has_place = any(PLACEHOLDER.fullmatch(part) for part in parts)
            return [self._part(part) for part in parts] if has_place else content
        if isinstance(content, list):
            return [self._item(item) for item in content]
        return content

    def _part(self, part: str) -> dict[str, Any]:
        return self._next() if PLACEHOLDER.fullmatch(part) else {"type": "text", "text": part}

    def _item(self, item: Any) -> Any:
        if not isinstance(item, dict) or item.get("type") != IMAGE:
            return item
        return self._next() if all(item.get(key) is None for key in LOCATIONS) else self._take(item)

    def _next(self) -> dict[str, Any]:
        self.asked += 1
        item = next(self._items, None)
        return {"type": IMAGE} if item is None else self._take(item)

    def _take(self, item: Any) -> dict[str, Any]:
        """Keeps what the item says besides, such as `max_pixels`, for templates and plug-ins."""
        self.images.append(read_image(self._row, item))
        rest = item if isinstance(item, dict) and item.get("type") == IMAGE else {}
        return {"type": IMAGE} | {key: value for key, value in rest.items() if key not in LOCATIONS}


def read_image(row: SourceRow, item: Any) -> bytes:
    """The bytes of an image's file, after a look whether they are one."""
    data = image_bytes(row, item)
    try:
        open_image(data)
    except (OSError, ValueError) as error:
        raise DataError(f"{row.place}: the image {shorten(item)} cannot be read: {error}") from error
    return data


def image_bytes(row: SourceRow, item: Any) -> bytes:
    while isinstance(item, dict):
        item = next((item[key] for key in LOCATIONS if item.get(key) is not None), None)
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str) or not item:
        raise DataError(
            f"{row.place}: an image is {shorten(item)}",
            hint='write a path, a data: URI, or {"bytes": …, "path": …} as `datasets` does',
        )
    if item.startswith("data:"):
        return data_uri_bytes(row, item)
    if re.match(r"[A-Za-z][\w+.-]+://", item) and not item.startswith("file://"):
        raise DataError(
            f"{row.place}: the image {shorten(item)} is on the network, and nothing is fetched",
            hint="download it, and write its path instead, relative to the prompt file",
        )
    path = row.path.parent / (unquote(urlparse(item).path) if item.startswith("file://") else item)
    return file_bytes(row, path)


def file_bytes(row: SourceRow, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{row.place}: there is no image {path} ({error.strerror})",
            hint=f"ls {path.parent}; paths are relative to the prompt file",
        ) from error


def data_uri_bytes(row: SourceRow, uri: str) -> bytes:
    header, comma, body = uri.partition(",")
    try:
        if not comma:
            raise ValueError("it has no comma")
        return base64.b64decode(body, validate=True) if header.endswith(";base64") else unquote_to_bytes(body)
    except (ValueError, binascii.Error) as error:
        raise DataError(f"{row.place}: the image {shorten(uri)} is no data: URI: {error}") from error
