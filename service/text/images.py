"""Images in a prompt: what a template writes for one, and the tokens that take its place; no jax.

Source: transformers `models/idefics3/processing_idefics3.py` (replace_image_token),
`models/qwen3_vl/processing_qwen3_vl.py`, `models/gemma3/processing_gemma3.py`, `models/pixtral/processing_pixtral.py`,
`models/gemma4/processing_gemma4.py`
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import override

from service.errors import InvalidParameter, RequestError


@dataclass(frozen=True)
class ImageText(ABC):
    """What stands for an image in the prompts of a model; may be sent to another process."""

    placeholder: str  # what a template writes for an image: a token that stands for one row, or that begins an image

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that a client's text must not have."""
        return (self.placeholder,)

    @property
    def has_lines(self) -> bool:
        """Whether a token follows each line of an image's tokens."""
        return False

    @abstractmethod
    def shown(self, rows: int, columns: int) -> str:
        """Return what replaces the placeholder of an image with a number of parts."""

    def check_text(self, text: str, param: str) -> None:
        """Check that a client's text does not stand for an image.

        Raises:
            InvalidParameter: it has one of `tokens`.
        """
        for token in self.tokens:
            if token in text:
                message = f"Invalid '{param}': '{token}' stands for an image, and no text may have it."
                raise InvalidParameter(message, param=param)

    def expanded(self, text: str, images: Sequence[str]) -> str:
        """Return a rendered prompt with what `shown` has returned for each of its images.

        Raises:
            RequestError: it has not as many placeholders as images, so a field that was rendered has one of its own,
                or the template leaves an image out.
        """
        parts = text.split(self.placeholder)
        # Defends against T31.
        if len(parts) != len(images) + 1:
            raise RequestError(
                f"The prompt has {len(parts) - 1} places for images, and the request {len(images)} images. No text of "
                f"a request may have '{self.placeholder}', and images belong into messages of the user."
            )
        return "".join(part for pair in zip(parts, [*images, ""], strict=True) for part in pair)


@dataclass(frozen=True)
class TileText(ImageText):
    """The text of Idefics3 and SmolVLM, whose images are tiles, and the whole image as one more."""

    num_rows: int  # of a tile
    around: str = "<fake_token_around_image>"
    whole: str = "<global-img>"  # before the whole image

    @override
    def shown(self, rows: int, columns: int) -> str:
        own = self.placeholder * self.num_rows
        tiles = "".join(
            "".join(f"{self.around}<row_{row}_col_{column}>{own}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return f"{tiles}{'\n' if tiles else ''}{self.around}{self.whole}{own}{self.around}"


@dataclass(frozen=True)
class RowText(ImageText):
    """The text of Qwen3-VL, whose images are rows and columns of tokens, and of Gemma 4, with tokens around them."""

    begin: str = ""
    end: str = ""

    @override
    def shown(self, rows: int, columns: int) -> str:
        return self.begin + self.placeholder * (rows * columns) + self.end


@dataclass(frozen=True)
class LineText(ImageText):
    """The text of Pixtral, whose images are lines of tokens, each of which ends with a token of its own."""

    line_end: str
    end: str  # in place of the last line's

    @property
    @override
    def has_lines(self) -> bool:
        return True

    @override
    def shown(self, rows: int, columns: int) -> str:
        return self.line_end.join([self.placeholder * columns] * rows) + self.end


@dataclass(frozen=True)
class BlockText(ImageText):
    """The text of Gemma 3, whose images are blocks of tokens, between one that begins an image and one that ends it."""

    row: str  # a token that stands for one row
    num_rows: int  # of an image
    end: str  # the token that ends an image

    @property
    @override
    def tokens(self) -> tuple[str, ...]:
        return self.placeholder, self.row

    @override
    def shown(self, rows: int, columns: int) -> str:
        return f"\n\n{self.placeholder}{self.row * self.num_rows}{self.end}\n\n"
