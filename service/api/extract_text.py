"""POST /extract_text: what is written in a file, for the chat page and for clients that send texts to models."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.service import ExtractedText
from service.api.dependencies import OpenCall
from service.api.http.form import MEDIA_TYPE, Form, read_form
from service.api.openapi.responses import BODY_ERRORS, answers
from service.api.schema.ignored import IgnoredField

router = APIRouter()
PATH = "/extract_text"
_FILE = {"type": "string", "format": "binary", "description": "The PDF, with a name."}
_FORM = {"type": "object", "properties": {"file": _FILE}, "required": ["file"]}
FORM = {"requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": _FORM}}}}


@router.post(PATH, tags=["texts"], responses=answers(ExtractedText, *BODY_ERRORS), openapi_extra=FORM)
async def extract_text(call: OpenCall, form: Annotated[Form, Depends(read_form)]) -> Response:
    """Return the text of a PDF, page by page in the order of its file; pictures are not read."""
    call.ignored.add(IgnoredField(name, is_known=False) for name in form.document)
    reading = call.api.media.pdf_text(form.content, client=call.key)
    found = await call.unless_disconnected(call.deadline.within(reading))
    return JSONResponse({"text": found.text, "num_pages": found.num_pages})
