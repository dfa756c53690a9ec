"""The base of the models that describe answers; a string below a field is its description."""

from pydantic import BaseModel, ConfigDict


class AnswerObject(BaseModel):
    """A JSON object that the service sends; a client should ignore fields that it does not know."""

    model_config = ConfigDict(use_attribute_docstrings=True)
