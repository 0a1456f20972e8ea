"""Images of prompts: from a row of prompt data through the prompt table to what the engine is sent."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from slime_stages.data.content import content_digest
from slime_stages.data.schema import MEDIA_PROMPTS
from slime_stages.errors import DataError, UsageError
from slime_stages.prompts.build import PromptCounts, build_prompts
from slime_stages.prompts.files import SourceRow
from slime_stages.prompts.media import place_media
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.table import PromptRow, read_prompt_table, table_schema, write_prompt_table
from tests.fixtures.tiny_model import make_tokenizer

KEYS = {"image": "images"}
TEMPLATE = (
    "{%- for message in messages %}{{ message['role'] + ': ' }}"
    "{%- if message['content'] is string %}{{ message['content'] }}{%- else %}"
    "{%- for item in message['content'] %}{{ '<image>' if item['type'] == 'image' else item['text'] }}{%- endfor %}"
    "{%- endif %}{{ '\\n' }}{%- endfor %}"
)


def encoded(color: str, size: tuple[int, int] = (4, 2), *, kind: str = "PNG", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, format=kind)
    return buffer.getvalue()


RED, BLUE = encoded("red"), encoded("blue", (2, 2), kind="JPEG")


def placed(content: Any, images: Any, folder: Path = Path(".")) -> tuple[Any, list[bytes]]:
    row = SourceRow(folder / "data.jsonl", 7, {"input": content, "images": images}, "line")
    messages, media = place_media(row, [{"role": "user", "content": content}], KEYS)
    return messages[0]["content"], media


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer and the processor of a model that sees 28 × 28 pixels as four tokens."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    folder = tmp_path_factory.mktemp("models") / "tiny-llava"
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = TEMPLATE
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_convert_rgb=True
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llava"}))
    return folder


def test_placeholders_are_replaced_in_their_order_and_text_stays_between_them() -> None:
    content, media = placed("<image>Is it<image>?", [RED, BLUE])

    assert content == [
        {"type": "image"},
        {"type": "text", "text": "Is it"},
        {"type": "image"},
        {"type": "text", "text": "?"},
    ]
    assert media == [RED, BLUE]


def test_a_text_without_a_placeholder_stays_text() -> None:
    assert placed("No image", None) == ("No image", [])


def test_items_of_a_list_take_the_columns_images_or_bring_their_own() -> None:
    own = {"type": "image", "image": {"bytes": BLUE, "path": None}, "max_pixels": 64}

    content, media = placed([{"type": "text", "text": "a <image> b"}, {"type": "image"}, own], [RED])

    assert content == [{"type": "text", "text": "a <image> b"}, {"type": "image"}, {"type": "image", "max_pixels": 64}]
    assert media == [RED, BLUE]


def test_an_image_is_bytes_a_path_a_uri_or_the_dict_that_datasets_writes(tmp_path: Path) -> None:
    (tmp_path / "red one.png").write_bytes(RED)
    uri = "data:image/png;base64," + base64.b64encode(RED).decode()
    ways = [
        RED,
        "red one.png",
        f"{tmp_path}/red one.png",
        f"file://{tmp_path}/red%20one.png",
        uri,
        {"bytes": RED, "path": "elsewhere.png"},
        {"bytes": None, "path": "red one.png"},
        {"type": "image", "image": uri},
    ]

    _, media = placed("<image>" * len(ways), ways, tmp_path)

    assert media == [RED] * len(ways)


def test_a_column_with_a_single_image_is_a_list_of_one() -> None:
    assert placed("<image>", {"bytes": RED, "path": None})[1] == [RED]


@pytest.mark.parametrize(("content", "places"), [("<image>", 1), ("<image><image><image>", 3), ("none", 0)])
def test_as_many_images_as_places_are_needed(content: str, places: int) -> None:
    with pytest.raises(DataError, match=f"line 7: the prompt has a place for {places} images, but `images` holds 2"):
        placed(content, [RED, BLUE])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("https://example.org/a.png", "is on the network, and nothing is fetched"),
        ("none.png", "there is no image none.png"),
        ("data:image/png;base64,%%%", "is no data: URI"),
        (b"GIF89a", "cannot be read"),
        (encoded("red", (40, 40), kind="JPEG")[:-300], "cannot be read"),
        ({"bytes": None, "path": None}, "an image is None"),
        (7, "an image is 7"),
    ],
)
def test_an_image_that_cannot_be_had_is_named_with_its_row(image: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"line 7.*{message}"):
        placed("<image>", [image])


def settings(path: Path, **changes: Any) -> PromptSettings:
    given: dict[str, Any] = {"multimodal_keys": KEYS, "apply_chat_template": True}
    return PromptSettings(prompt_data=(str(path),), **(given | changes))


def write_rows(path: Path) -> Path:
    """Images in their own column as verl and `datasets` write them, and a row without."""
    images = [[{"bytes": RED, "path": None}], [], [{"bytes": BLUE, "path": None}, {"bytes": RED, "path": None}]]
    texts = ["<image>1", "12", "<image>1<image>"]
    rows = [{"input": text, "images": these} for text, these in zip(texts, images, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_each_image_is_as_many_tokens_as_the_model_sees_and_rows_keep_their_order(tmp_path: Path, reader: Path) -> None:
    rows = list(build_prompts(settings(write_rows(tmp_path / "a.parquet")), reader, PromptCounts()))

    assert [row.prompt for row in rows] == ["user: <image>1\n", "user: 12\n", "user: <image>1<image>\n"]
    [image] = {token for token in ids(rows[0]) if ids(rows[0]).count(token) == 4}
    assert [ids(row).count(image) for row in rows] == [4, 0, 8]
    assert len(ids(rows[0])) - 4 == len(ids(rows[2])) - 8 == len(ids(rows[1])) - 1


def test_images_count_in_the_length_filter(tmp_path: Path, reader: Path) -> None:
    rows = list(build_prompts(settings(write_rows(tmp_path / "a.parquet")), reader, PromptCounts()))
    limit, counts = len(ids(rows[0])), PromptCounts()

    kept = build_prompts(settings(tmp_path / "a.parquet", rollout_max_prompt_len=limit), reader, counts)

    assert [row.prompt for row in kept] == [rows[0].prompt, rows[1].prompt]
    assert counts.longest_dropped == len(ids(rows[2]))


def test_the_table_keeps_the_images_as_their_files_were(tmp_path: Path, reader: Path) -> None:
    rows = list(build_prompts(settings(write_rows(tmp_path / "a.parquet")), reader, PromptCounts()))
    path = tmp_path / "prompts.parquet"

    write_prompt_table(path, rows, media=True)

    assert table_schema(path) is MEDIA_PROMPTS
    assert len(content_digest(path, MEDIA_PROMPTS)) == 32
    with read_prompt_table(path) as table:
        assert [row.media for row in table.rows([2, 1, 0])] == [[BLUE, RED], None, [RED]]
        inputs = table.row(0).multimodal_inputs()
        assert inputs is not None
        assert [image.getpixel((0, 0)) for image in inputs["images"]] == [(255, 0, 0)]
        assert table.row(1).multimodal_inputs() is None


def test_the_prompt_id_changes_with_an_image_and_not_with_where_it_was(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    images: list[Any] = ["red.png", "data:image/png;base64," + base64.b64encode(RED).decode()]
    images.append("data:image/png;base64," + base64.b64encode(BLUE).decode())
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"input": "<image>", "images": [image]}) + "\n" for image in images))

    rows = list(build_prompts(settings(path, apply_chat_template=False), tiny_model, PromptCounts()))

    assert rows[0].prompt == [{"role": "user", "content": [{"type": "image"}]}]
    assert rows[0].prompt_id == rows[1].prompt_id != rows[2].prompt_id


def test_a_prompt_without_images_keeps_its_id_beside_others(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "Hi"}\n')
    plain = PromptSettings(prompt_data=(str(path),), apply_chat_template=True)

    [one] = build_prompts(plain, tiny_model, PromptCounts())
    [other] = build_prompts(settings(path), tiny_model, PromptCounts())

    assert one == other


def test_a_placeholder_in_a_text_that_the_processor_cannot_fill_is_a_data_error(tmp_path: Path, reader: Path) -> None:
    """The template writes the model's own token for the text's `<image>` in a list, where no image belongs."""
    path = tmp_path / "data.jsonl"
    uri = "data:image/png;base64," + base64.b64encode(RED).decode()
    content = [{"type": "text", "text": "<image>"}, {"type": "image"}]
    path.write_text(json.dumps({"input": [{"role": "user", "content": content}], "images": [uri]}) + "\n")

    with pytest.raises(DataError, match=r"data\.jsonl:1: the model's processor refuses"):
        list(build_prompts(settings(path), reader, PromptCounts()))


def ids(row: PromptRow) -> list[int]:
    assert row.prompt_token_ids is not None
    return list(row.prompt_token_ids)


def test_other_media_than_images_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    given = PromptSettings(prompt_data=(str(tmp_path / "none.jsonl"),), multimodal_keys={"video": "videos"})

    with pytest.raises(UsageError, match="multimodal_keys has video"):
        list(build_prompts(given, tiny_model, PromptCounts()))
