"""POST, GET and DELETE /v1/files: the inputs and results of batches.

Source: https://platform.openai.com/docs/api-reference/files
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.api.answers.batches import DeletedFile, FileList, FileObject
from service.api.batch.access import AppBatches, Owner, failures_of_disks, in_store
from service.api.batch.batches import Batches, listing
from service.api.batch.files import StoredFile
from service.api.http.call import call_of
from service.api.http.form import check_form
from service.api.http.query import as_number, query_of
from service.api.openapi.responses import Responses, answers, properties, statuses
from service.api.schema.batches import ExpiresAfter, FileFields, FileQuery
from service.api.schema.wire import checked
from service.errors import (
    ClientDisconnected,
    InvalidParameter,
    MissingParameter,
    RequestError,
    UnsupportedParameter,
)

router = APIRouter(tags=["batches"])

# OpenAI's others.
OTHER_PURPOSES = frozenset({"assistants", "evals", "fine-tune", "user_data", "vision"})
FORM = "multipart/form-data"
MAX_FIELDS, MAX_FIELD_BYTES, MAX_FILENAME_CHARS = 8, 4096, 255
READ_BYTES = 1024 * 1024

FILE_FIELD = {"type": "string", "format": "binary", "description": "The file, with a name."}
_FORM_SCHEMA = {
    "type": "object",
    "properties": {"file": FILE_FIELD, **properties(FileFields)},
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_FORM_ENCODING = {"expires_after": {"style": "deepObject", "explode": True}}
FORM_BODY = {"requestBody": {"required": True, "content": {FORM: {"schema": _FORM_SCHEMA, "encoding": _FORM_ENCODING}}}}
CONTENT: Responses = {200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


@router.post("/v1/files", responses=answers(FileObject, 400, 408, 413, 415, 503), openapi_extra=FORM_BODY)
async def create_file(
    request: Request,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Upload the requests of a batch, a JSON object a line.

    Only the API key that uploads a file sees it. A file ends after 30 days, or when `expires_after` says.

    Source: https://platform.openai.com/docs/api-reference/files/create
    """
    check_form(request)
    try:
        with failures_of_disks():
            async with (
                batches.uploads,
                request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES) as form,
            ):
                upload, fields = _read(form)
                call_of(request.scope).ignored.add(fields.ignored)
                stored = await in_store(partial(_add, batches, owner, upload, fields))
    except HTTPException as error:
        raise RequestError(f"The request's body is not a valid form: {error.detail}") from None
    except ClientDisconnect:
        raise ClientDisconnected from None
    return JSONResponse(stored.document())


@router.get("/v1/files", responses=answers(FileList, 400, 503))
async def list_files(
    batches: AppBatches,
    owner: Owner,
    query: Annotated[FileQuery, Depends(query_of(FileQuery))],
) -> Response:
    """List the files of the API key, the newest first."""
    found, has_more = await in_store(
        lambda: batches.files.page(
            owner,
            limit=query.limit,
            is_ascending=query.order == "asc",
            after=query.after,
            purpose=query.purpose,
        )
    )
    return JSONResponse(listing([stored.document() for stored in found], has_more=has_more))


@router.get("/v1/files/{file_id}", responses=answers(FileObject, 404, 503))
async def retrieve_file(
    file_id: str,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Describe one file."""
    stored = await in_store(lambda: batches.files.get(owner, file_id))
    return JSONResponse(stored.document())


@router.delete("/v1/files/{file_id}", responses=answers(DeletedFile, 404, 503))
async def delete_file(
    file_id: str,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Delete a file; a batch that was created from it goes on."""
    await in_store(lambda: batches.files.delete(owner, file_id))
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


@router.get(
    "/v1/files/{file_id}/content", responses={**CONTENT, **statuses(404, 503)}, response_class=StreamingResponse
)
async def download_file(
    file_id: str,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Return the content of a file."""
    stored, content = await in_store(lambda: batches.files.open(owner, file_id))
    headers = {
        "content-length": str(stored.bytes),
        "content-disposition": f"attachment; filename*=utf-8''{quote(stored.filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(_parts(content), headers=headers, media_type="application/octet-stream")


def _read(form: FormData) -> tuple[UploadFile, FileFields]:
    """Return the file of a form and its checked fields, which a form writes as `expires_after[seconds]`."""
    document: dict[str, Any] = {}
    for name, value in form.multi_items():
        if value == "":  # as clients write what is absent
            continue
        outer, bracket, inner = name.partition("[")
        target, key = (document.setdefault(outer, {}), inner.removesuffix("]")) if bracket else (document, name)
        if not isinstance(target, dict) or key in target:
            raise InvalidParameter(f"Invalid '{name[:64]}': it is there twice.", param=name[:64])
        target[key] = as_number(ExpiresAfter, key, value) if bracket and isinstance(value, str) else value
    upload = document.pop("file", None)
    if upload is None:
        raise MissingParameter("file")
    if not isinstance(upload, UploadFile):
        raise InvalidParameter("Invalid 'file': it must be a file, with a name.", param="file")
    if len(upload.filename or "") > MAX_FILENAME_CHARS:
        message = f"Invalid 'file': its name has more than {MAX_FILENAME_CHARS} characters."
        raise InvalidParameter(message, param="file")
    if document.get("purpose") in OTHER_PURPOSES:
        raise UnsupportedParameter("purpose", "files are for batches. Send 'batch'.")
    return upload, checked(FileFields, document)


def _add(batches: Batches, owner: str, upload: UploadFile, fields: FileFields) -> StoredFile:
    return batches.files.add(
        owner,
        upload.file,
        upload.file.seek(0, os.SEEK_END),
        filename=upload.filename or "",
        purpose=fields.purpose,
        expires_after_s=None if fields.expires_after is None else fields.expires_after.seconds,
    )


def _parts(content: BinaryIO) -> Iterator[bytes]:
    with content:
        while part := content.read(READ_BYTES):
            yield part
