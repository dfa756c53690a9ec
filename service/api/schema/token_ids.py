"""Token ids that pass between processes as JSON: the base64 of their 32-bit numbers, which is read in one piece."""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator


def _written(ids: Sequence[int]) -> str:
    return b64encode(array("i", ids)).decode()


def _read(text: str) -> Sequence[int]:
    return array("i", b64decode(text))


TokenIds = Annotated[Sequence[int], PlainSerializer(_written), PlainValidator(_read)]
