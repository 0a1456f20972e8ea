"""Images of a prompt: from the bytes of a file to what plug-ins see on a sample and to what the engine is sent."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from slime_stages.errors import UsageError
from slime_stages.sample import Sample

IMAGES = "images"
"""Key of the images in `Sample.multimodal_inputs`."""


def multimodal_inputs(media: Sequence[bytes] | None) -> dict[str, Any] | None:
    """What `Sample.multimodal_inputs` is for the images of a prompt, given as their files are."""
    return {IMAGES: [open_image(data) for data in media]} if media else None


def open_image(data: bytes) -> Any:
    """A decoded PIL image in RGB; what shows through is white. OSError or ValueError if it is none."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except (SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    return to_rgb(image)


def to_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode == "RGB":
        return image
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def request_media(sample: Sample) -> dict[str, Any]:
    """What an engine's request says of the sample's images; nothing where there are none.

    `text` takes the place of `input_ids`: the server itself puts an image's tokens where the text has its placeholder.
    UsageError for media that the engine is not sent, and for messages.
    """
    media = {kind: items for kind, items in (sample.multimodal_inputs or {}).items() if items}
    if not media:
        return {}
    if other := sorted(media.keys() - {IMAGES}):
        raise UsageError(
            f"multimodal_inputs holds {', '.join(other)}, and only {IMAGES} are sent to the engine",
            hint="a --custom-generate-function-path that sends them",
        )
    if not isinstance(sample.prompt, str):
        raise UsageError(
            "the prompt has images, but it is chat messages and no chat template is applied",
            hint="add --apply-chat-template, or a --custom-generate-function-path that takes messages",
        )
    return {"text": sample.prompt + sample.response, "image_data": [png_data_uri(image) for image in media[IMAGES]]}


def png_data_uri(image: Any) -> str:
    buffer = io.BytesIO()
    to_rgb(image).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
