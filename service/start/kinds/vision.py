"""How images are cut, scaled and written into a prompt, from a checkpoint's preprocessor file and its encoder."""

from collections.abc import Mapping
from typing import Any

from service.api.served import Vision
from service.engine.shapes import RowShapes
from service.errors import MalformedCheckpoint
from service.media.budget import read_budget
from service.media.longest_edge import read_line_tokens, read_longest_edge
from service.media.scaling import read_scaler
from service.media.tiles import read_square, read_tiler
from service.models.description import ImageEncoder, PatchEncoder
from service.start.kinds.model_spec import TextFiles
from service.text.images import BlockText, LineText, RowText, TileText


def read_vision(
    uri: str, text: TextFiles, encoder: ImageEncoder | PatchEncoder, shapes: RowShapes, max_image_tokens: int | None
) -> Vision:
    """Read how images are cut and scaled, and what stands for them in a prompt.

    Args:
        uri: the checkpoint, for errors.
        text: its tokenizer, and the content of `preprocessor_config.json`.
        encoder: the description of the model's encoder.
        shapes: the rows of images, which bound their tokens.
        max_image_tokens: the operator's bound of tokens of images that are tiles.

    Raises:
        MalformedCheckpoint: the files beside the weights do not say it, or ask for what is not done here.
    """
    placeholder, values = _token(uri, text, encoder.token_id), text.preprocessor
    if isinstance(encoder, PatchEncoder):
        return _of_patches(uri, text, encoder, shapes, placeholder)
    size, rows = encoder.image_size, encoder.num_rows
    if encoder.around is not None:
        begin, end = (_token(uri, text, token_id) for token_id in encoder.around)
        square = read_square(uri, values, tile_size=size, tile_rows=rows)
        return Vision(square, BlockText(begin, placeholder, rows, end), encoder.token_id, shapes)
    tiler = read_tiler(uri, values, tile_size=size, tile_rows=rows, max_rows=max_image_tokens)
    return Vision(tiler, TileText(placeholder, rows), encoder.token_id, shapes)


def _of_patches(uri: str, text: TextFiles, encoder: PatchEncoder, shapes: RowShapes, placeholder: str) -> Vision:
    values: Mapping[str, Any] = text.preprocessor
    sizes: Any = {"patch_size": encoder.patch_size, "merge_size": encoder.merge_size, "padded_rows": shapes.num_rows}
    if encoder.has_lines:
        ends = read_line_tokens(uri, values)
        for end in ends:
            if text.tokenizer.backend.token_to_id(end) is None:
                raise MalformedCheckpoint(uri, "tokenizer.json", f"has no token {end}, which stands for images")
        pixels = (encoder.pixel_mean, encoder.pixel_deviation)
        scaler = read_longest_edge(uri, values, **sizes, pixels=pixels)
        return Vision(scaler, LineText(placeholder, *ends), encoder.token_id, shapes)
    if encoder.around is not None:
        around = (_token(uri, text, token_id) for token_id in encoder.around)
        return Vision(read_budget(uri, values, **sizes), RowText(placeholder, *around), encoder.token_id, shapes)
    return Vision(read_scaler(uri, values, **sizes), RowText(placeholder), encoder.token_id, shapes)


def _token(uri: str, text: TextFiles, token_id: int) -> str:
    found = text.tokenizer.backend.id_to_token(token_id)
    if found is None:
        raise MalformedCheckpoint(uri, "tokenizer.json", f"has no token {token_id}, which stands for images")
    return found
