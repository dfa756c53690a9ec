"""What every JSON object that clients send has in common."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from service.api.schema.unsupported import NeutralValues


class WireObject(BaseModel):
    """A JSON object whose every field is known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    neutral_values: ClassVar[NeutralValues] = {}
    nested: ClassVar[dict[str, "type[WireObject]"]] = {}
