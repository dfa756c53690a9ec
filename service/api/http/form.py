"""A multipart form with one file, in memory; nothing of it is written anywhere.

Source: https://www.rfc-editor.org/rfc/rfc7578
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple, get_origin, override

import jiter
from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from service.api.http.call import call_of
from service.api.schema.wire import WireObject, checked
from service.errors import ClientDisconnected, InvalidParameter, MissingParameter, RequestError, UnsupportedMediaType

MEDIA_TYPE = "multipart/form-data"
MAX_FIELDS, MAX_FIELD_BYTES = 64, 64 * 1024
UTF_8 = frozenset({b"utf-8", b"utf8"})
FORM_BYTES = 16 * 1024  # of a form besides its file
RECORDING_FORM_BYTES = 128 * 1024  # of one that may have a prompt
MAX_PART_HEADERS, MAX_PART_HEADER_BYTES = 8, 1024
MAX_DIGITS = 6  # of the number of an entry of a list
MAX_NAME_CHARS = 64  # of a field; longer names are cut in errors
FILE = "file"
_WORDS = {"true": True, "false": False, "null": None}
# As PHP and HTML write them.
_BOOLEANS = {"1": True, "0": False, "on": True, "off": False, "yes": True, "no": False}


class Form(NamedTuple):
    """The fields of a form as a JSON object, and its file."""

    document: dict[str, Any]
    content: bytes


def form_body[T: WireObject](kind: type[T]) -> Callable[[Request], Any]:
    """Return a FastAPI dependency that reads a form, and returns its checked fields and its file."""

    async def read(request: Request) -> tuple[T, bytes]:
        form = await read_form(request)
        body = checked(kind, _typed(kind, form.document))
        call_of(request.scope).ignored.add(body.ignored)
        return body, form.content

    return read


def check_form(request: Request) -> None:
    """Check that a body is a form in UTF-8: other encodings of Python have characters that no answer can have.

    Raises:
        UnsupportedMediaType: it is none, or names another encoding.
    """
    stated = request.headers.get("content-type", "")
    media_type, options = parse_options_header(stated.encode("latin-1"))
    if media_type != MEDIA_TYPE.encode() or not stated.startswith(MEDIA_TYPE):
        raise UnsupportedMediaType(f"Content-Type must be {MEDIA_TYPE}.")
    # Defends against T40.
    if options.get(b"charset", b"utf-8").lower() not in UTF_8:
        raise UnsupportedMediaType("The charset of a form must be utf-8.")


async def read_form(request: Request) -> Form:
    """Return the form of a request.

    A field that is named `a[]` or `a[0]`, or is there several times, is a list; `a[b]` is the field `b` of an object.
    Values are texts; one that is empty is absent.

    Raises:
        RequestError: the body is no form, or has too many parts.
        MissingParameter: it has no file.
        InvalidParameter: a field is there twice, or the file is none.
        ClientDisconnected: the client disconnected first.
    """
    check_form(request)
    parser = _FormParser(
        request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    try:
        return await _read(await parser.parse())
    except MultiPartException as error:
        raise RequestError(f"The request's body is not a valid form: {error.message}") from None
    except ClientDisconnect:
        raise ClientDisconnected from None
    finally:
        parser.close_files()


async def _read(fields: FormData) -> Form:
    document: dict[str, Any] = {}
    content = None
    for name, value in fields.multi_items():
        if not isinstance(value, UploadFile):
            if value.strip():
                _add(document, name, value)
        elif name == FILE:
            assert isinstance(value.file, _Memory)
            content = value.file.getvalue()  # which copies nothing
        else:
            param = name[:MAX_NAME_CHARS]
            raise InvalidParameter(f"Invalid '{param}': a file must be in the field 'file'.", param=param)
    if content is not None:
        return Form({name: _listed(value) for name, value in document.items()}, content)
    if FILE in document:
        raise InvalidParameter("Invalid 'file': it must be a file, with a name.", param=FILE)
    raise MissingParameter(FILE)


class _Memory(BytesIO):
    """A file in memory, as starlette asks whether it is."""

    _rolled = False


class _FormParser(MultiPartParser):
    """Keeps files in memory, whose size the limit of the body bounds, and bounds the headers of parts."""

    spool_max_size = 2**62  # beyond which starlette would write in another thread

    def close_files(self) -> None:
        """Free the files, those of incomplete parts included."""
        for file in self._files_to_close_on_error:
            file.close()

    @override
    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file = _Memory()

    @override
    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        if len(self._current_part.item_headers) >= MAX_PART_HEADERS:
            raise MultiPartException(f"A part has more than {MAX_PART_HEADERS} headers.")
        self._check_header(end - start)
        super().on_header_field(data, start, end)

    @override
    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._check_header(end - start)
        super().on_header_value(data, start, end)

    def _check_header(self, num_more: int) -> None:
        size = len(self._current_partial_header_name) + len(self._current_partial_header_value) + num_more
        # Defends against T35.
        if size > MAX_PART_HEADER_BYTES:
            raise MultiPartException(f"A part has a header of more than {MAX_PART_HEADER_BYTES} bytes.")


def _add(document: dict[str, Any], name: str, text: str) -> None:
    outer, bracket, inner = name.partition("[")
    inner = inner.removesuffix("]")
    if inner:
        target = document.setdefault(outer, {})
        if not isinstance(target, dict) or inner in target:
            param = name[:MAX_NAME_CHARS]
            raise InvalidParameter(f"Invalid '{param}': it is there twice.", param=param)
        target[inner] = text
    elif bracket or outer in document:
        known = document.get(outer, [])
        document[outer] = [*(known if isinstance(known, list) else [known]), text]
    else:
        document[outer] = text


def _listed(value: Any) -> Any:
    """Return the list of a field whose parts are numbered, in their order."""
    if not isinstance(value, dict) or not all(name.isdecimal() and len(name) <= MAX_DIGITS for name in value):
        return value
    return [value[name] for name in sorted(value, key=int)]


def _typed(kind: type[WireObject], document: dict[str, Any]) -> dict[str, Any]:
    """Return a form's fields with the values that JSON has for those that are not texts.

    Raises:
        InvalidParameter: a field that takes one value is there several times.
    """
    typed: dict[str, Any] = {}
    for name, value in document.items():
        field = kind.model_fields.get(name)
        takes_list = field is None or get_origin(field.annotation) is tuple
        if isinstance(value, list) and not takes_list:
            raise InvalidParameter(f"Invalid '{name}': it takes one value. Send it once.", param=name)
        if field is not None and field.annotation in (str, str | None):
            typed[name] = value
        elif field is not None and field.annotation is bool and isinstance(value, str):
            typed[name] = _BOOLEANS.get(value.strip().lower(), scalar(value))
        elif (found := _flat(value) if takes_list else _valued(value)) != []:
            typed[name] = found
    return typed


def _flat(value: Any) -> Any:
    """Return a value, or the list of values that themselves may be lists in JSON."""
    if not isinstance(value, list):
        return _valued(value)
    values = map(_valued, value)
    return [inner for each in values for inner in (each if isinstance(each, list) else [each])]


def _valued(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _valued(inner) for name, inner in value.items()}
    return scalar(value) if isinstance(value, str) else value


def scalar(text: str) -> Any:
    """Return what a text of a form stands for: true, false, a number, an object, a list; otherwise the text."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if word[:1] in "-0123456789{[" and word:
        try:
            return jiter.from_json(text.strip().encode(), allow_inf_nan=False, catch_duplicate_keys=True)
        except ValueError:
            return text
    return text
