"""Server-sent events: from the bytes of a stream, however they are cut, to the data of its events."""

from __future__ import annotations

import codecs

DONE = "[DONE]"  # what OpenAI's interface sends last


class EventParser:
    """Feeds on bytes and gives the data of whole events; comments and fields other than ``data`` are left out.

    Lines end in LF, CRLF or CR; the lines of an event's data are joined by LF, and an empty line ends it (WHATWG HTML,
    section 9.2.6, but for events without data, which are nothing here).
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, data: bytes) -> list[str]:
        """The events that these bytes complete."""
        events: list[str] = []
        for character_run in self._split(self._decoder.decode(data)):
            event = self._end_line(character_run)
            if event is not None:
                events.append(event)
        return events

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._line or self._data)

    def _split(self, text: str) -> list[str]:
        """Whole lines; what follows the last line end is kept."""
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        if text:
            self._after_cr = text.endswith("\r")
        lines = (self._line + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._line = lines.pop()
        return lines

    def _end_line(self, line: str) -> str | None:
        if not line:
            event, self._data = "\n".join(self._data), []
            return event or None
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        return None
