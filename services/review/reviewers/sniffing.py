"""What the first bytes of a content show: a known format, text, or something else.

Signatures come from the `filetype` library; it knows no text and matches some formats by two
letters, so text is told apart here first.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import filetype

#: How much of the beginning is looked at; every signature lies within it.
HEAD_BYTES = 8192

#: Formats written in plain letters whose signature is long enough to be meant.
_LETTERED = frozenset({"application/pdf", "application/postscript", "application/rtf"})
_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Control characters that text has: tab, line feeds, form feed, backspace, escape.
_CONTROLS = frozenset(range(32)) - {8, 9, 10, 12, 13, 27}


@dataclass(frozen=True, slots=True)
class Sniffed:
    """`mime` is a known format's type, None when no signature fits; `is_text` reads as text."""

    mime: str | None
    is_text: bool


def sniff(head: bytes) -> Sniffed:
    """Look at the first bytes (at most HEAD_BYTES are used)."""
    head = head[:HEAD_BYTES]
    is_text = looks_like_text(head)
    kind = filetype.guess(bytearray(head)) if head else None
    mime = str(kind.mime) if kind is not None else None
    if is_text and mime not in _LETTERED:
        mime = None
    return Sniffed(mime=mime, is_text=is_text)


def looks_like_text(head: bytes) -> bool:
    """Tell whether bytes are UTF-8 or UTF-16 (with its mark) text, or single-byte text."""
    if head.startswith(_BOMS):
        return True
    if any(byte in _CONTROLS for byte in head):
        return False
    try:
        # A character may be cut off at the end of the head.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        # Old single-byte encodings: mostly ASCII, no control characters.
        return sum(byte >= 0x80 for byte in head) <= len(head) * 0.3
    return True
