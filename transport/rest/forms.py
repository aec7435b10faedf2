"""Requests with files: bodies of `multipart/form-data`, one part with the parameters and one for each file. No I/O."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.attachments import MAX_ATTACHMENTS, MAX_NAME, File
from warren.transport.access.refusals import RefusedError

FORM: Final = "multipart/form-data"
PARAMS: Final = "params"
"""The part with the parameters, as JSON."""
FILES: Final = "attachments"
_FILE: Final = re.compile(r"\$\.attachments\[(\d+)\](?:\.data\b)?")


@define(eq=False)
class _Part:
    """A part: its name, the name of its file, its type, and its bytes."""

    name: str
    filename: str | None
    media_type: str | None
    body: BytesIO = attrs.field(factory=BytesIO)


class Form:
    """Reads a body piece by piece. A file is in memory once, whatever its size."""

    def __init__(self, content_type: str, most_params: int, most_file: int) -> None:
        """Begin a body.

        Args:
            content_type: the header of the request.
            most_params: bytes that the parameters may have.
            most_file: bytes that a file may have.

        Raises RefusedError (400) if the header names no boundary.
        """
        # Most servers never see a form, and it takes longer to import than all the rest of REST.
        from python_multipart import MultipartParser  # noqa: PLC0415
        from python_multipart.exceptions import FormParserError  # noqa: PLC0415
        from python_multipart.multipart import parse_options_header  # noqa: PLC0415

        self._options, self._error = parse_options_header, FormParserError
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise RefusedError(400, f"{FORM} needs a boundary", field="$.headers.content-type")
        self._most = {True: (most_params, "max_message_bytes"), False: (most_file, "limits.max_attachment")}
        self._parts = list[_Part]()
        self._headers = dict[bytes, bytes]()
        self._field, self._value = bytearray(), bytearray()
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin,
                    "on_part_data": self._add,
                    "on_end": self._end,
                },
            )
        except FormParserError as exc:
            raise _no_form(exc) from exc

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises RefusedError (400, 413) that names the part."""
        try:
            self._parser.write(data)
        except self._error as exc:
            raise _no_form(exc) from exc

    def params(self) -> dict[str, Any]:
        """Return the parameters of a body that is read. Raises RefusedError (400), InvalidParamsError."""
        if not self._ended:
            raise RefusedError(400, "the body is not whole", field="$.body")
        found = [each.body.getvalue() for each in self._parts if each.name == PARAMS]
        if len(found) != 1:
            raise InvalidParamsError.at(f"$.{PARAMS}", "is to be one part, with the parameters as JSON")
        try:
            data = codec.parse(found[0])
        except ValueError as exc:
            raise RefusedError(400, f"$.{PARAMS}: not JSON: {exc}", field=f"$.{PARAMS}") from exc
        if not isinstance(data, dict):
            raise InvalidParamsError.at(f"$.{PARAMS}", "must be an object")
        return data

    def files(self) -> tuple[File, ...]:
        """Return the files of a body that is read."""
        return tuple(File(each.body.getvalue(), media_type=each.media_type, name=each.filename) for each in self._files)

    def renamed(self, error: InvalidParamsError, before: int) -> InvalidParamsError:
        """Return an error about a file under the name of its part; `before` files were among the parameters."""
        found = _FILE.match(str(error.path))
        index = -1 if found is None else int(found[1]) - before
        if found is None or index < 0:
            return error
        path = f"$.{_names(self._files)[index]}"
        told = error.message.replace(found[0], path, 1)
        return InvalidParamsError(told, path=path + str(error.path)[found.end() :])

    @property
    def _files(self) -> Sequence[_Part]:
        return [each for each in self._parts if each.name != PARAMS]

    def _end_header(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _begin(self) -> None:
        options: Mapping[bytes, bytes] = self._options(self._headers.get(b"content-disposition", b""))[1]
        name = options.get(b"name", b"").decode(errors="replace")[:MAX_NAME]
        if not name:
            raise RefusedError(400, "a part of the body has no name", field="$.body")
        filename = options.get(b"filename", b"").decode(errors="replace").replace("\\", "/")
        media_type = self._headers.get(b"content-type", b"").decode("latin-1").strip()
        shown = PurePosixPath(filename).name.strip()[-MAX_NAME:]
        self._parts.append(_Part(name, shown or None, media_type or None))
        if len(self._parts) > MAX_ATTACHMENTS + 1:
            raise RefusedError(413, f"the body has more than {MAX_ATTACHMENTS} files", field="$.body")

    def _add(self, data: bytes, start: int, end: int) -> None:
        part = self._parts[-1]
        most, bound = self._most[part.name == PARAMS]
        if part.body.tell() + end - start > most:
            path = f"$.{PARAMS if part.name == PARAMS else _names(self._files)[-1]}"
            raise RefusedError(413, f"{path}: has more than {most} bytes ({bound})", field=path)
        part.body.write(memoryview(data)[start:end])

    def _end(self) -> None:
        self._ended = True


def _names(parts: Sequence[_Part]) -> Sequence[str]:
    """Return names that tell parts apart: several with one name get numbers."""
    of, seen, names = Counter(each.name for each in parts), Counter[str](), []
    for each in parts:
        names.append(each.name if of[each.name] == 1 else f"{each.name}[{seen[each.name]}]")
        seen[each.name] += 1
    return names


def _no_form(exc: Exception) -> RefusedError:
    return RefusedError(400, f"the body is not {FORM}: {exc}", field="$.body")
