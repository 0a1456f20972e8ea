from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slime_stages.data.multimodal import multimodal_inputs, open_image, request_media
from slime_stages.data.sample_table import read_samples, write_samples
from slime_stages.errors import UsageError
from slime_stages.sample import Sample


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def sent(request: dict[str, Any]) -> list[Image.Image]:
    heads, bodies = zip(*(uri.split(",") for uri in request["image_data"]), strict=True)
    assert set(heads) == {"data:image/png;base64"}
    return [Image.open(io.BytesIO(base64.b64decode(body))) for body in bodies]


def test_a_request_has_text_and_images_in_place_of_ids() -> None:
    media = [encoded(Image.new("RGB", (3, 2), "red")), encoded(Image.new("L", (1, 1), 7))]
    sample = Sample(prompt="<image><image>?", response="So", multimodal_inputs=multimodal_inputs(media))

    request = request_media(sample)

    assert request["text"] == "<image><image>?So"
    assert [(image.mode, image.size, image.getpixel((0, 0))) for image in sent(request)] == [
        ("RGB", (3, 2), (255, 0, 0)),
        ("RGB", (1, 1), (7, 7, 7)),
    ]


@pytest.mark.parametrize("inputs", [None, {}, {"images": None}, {"images": [], "videos": None}])
def test_without_images_a_request_is_left_as_it_is(inputs: dict[str, Any] | None) -> None:
    assert request_media(Sample(prompt="Hi", multimodal_inputs=inputs)) == {}


def test_what_shows_through_is_white_and_a_palette_is_resolved() -> None:
    clear = Image.new("RGBA", (1, 1), (0, 0, 0, 0))
    palette = Image.new("RGB", (1, 1), "blue").quantize()

    assert open_image(encoded(clear)).getpixel((0, 0)) == (255, 255, 255)
    assert open_image(encoded(palette)).getpixel((0, 0)) == (0, 0, 255)


def test_images_go_through_a_rollout_shard_unchanged(tmp_path: Path) -> None:
    media = [encoded(Image.new("RGB", (3, 2), (1, 2, 3))), encoded(Image.new("RGB", (9, 9), "red"), "JPEG")]
    sample = Sample(
        prompt="<image><image>", tokens=[1, 2], response_length=1, multimodal_inputs=multimodal_inputs(media)
    )

    write_samples(tmp_path / "shard.parquet", [sample], iteration=0, shard=0)
    [read] = read_samples(tmp_path / "shard.parquet")

    assert read.multimodal_inputs is not None
    assert [image.tobytes() for image in read.multimodal_inputs["images"]] == [
        open_image(data).tobytes() for data in media
    ]
    assert request_media(read) == request_media(sample)


def test_media_that_the_engine_is_not_sent_and_messages_are_refused() -> None:
    image = Image.new("RGB", (1, 1))

    with pytest.raises(UsageError, match="multimodal_inputs holds videos"):
        request_media(Sample(prompt="Hi", multimodal_inputs={"images": [image], "videos": ["a.mp4"]}))
    with pytest.raises(UsageError, match="no chat template is applied"):
        request_media(Sample(prompt=[{"role": "user", "content": "Hi"}], multimodal_inputs={"images": [image]}))
