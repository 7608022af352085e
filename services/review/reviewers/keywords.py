"""Keyword lists over content that reads as text, in one pass and constant memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from services.review.reviewers.finding import Finding, Outcome

STEP = "keywords"
_DOUBT = "a word of the doubtful list occurs"


class KeywordScan:
    """Looks for words in a stream of bytes, without regard to case and across chunk borders.

    The first chunk shows the encoding, so it holds more than a byte order mark.
    """

    def __init__(self, *, reject: Iterable[str], doubtful: Iterable[str]) -> None:
        self._reject = sorted({fold(word) for word in reject})
        self._doubtful = sorted({fold(word) for word in doubtful} - set(self._reject))
        # A word that began at the end of one chunk is whole in the next with so much text kept.
        self._overlap = max(map(len, self._reject + self._doubtful), default=1) - 1
        self._decoder: codecs.IncrementalDecoder | None = None
        self._kept = ""
        self._doubt = False
        self.finding: Finding | None = None

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes; False when the answer stands and no more are needed."""
        if self.finding is not None:
            return False
        if self._decoder is None:
            self._decoder = _decoder_for(chunk)
        self._look(self._decoder.decode(chunk))
        return self.finding is None

    def finish(self) -> Finding:
        """Return the finding for everything fed."""
        if self.finding is None and self._decoder is not None:
            self._look(self._decoder.decode(b"", final=True))
        if self.finding is None:
            self.finding = Finding(
                STEP,
                Outcome.DOUBTFUL if self._doubt else Outcome.PASS,
                _DOUBT if self._doubt else "",
            )
        return self.finding

    def _look(self, text: str) -> None:
        window = self._kept + fold(text)
        # Plain substring searches: for the dozens of words of a usual list they beat one pattern.
        if any(word in window for word in self._reject):
            self.finding = Finding(STEP, Outcome.REJECT, "a word of the reject list occurs")
            return
        self._doubt = self._doubt or any(word in window for word in self._doubtful)
        if self._doubt and not self._reject:
            self.finding = Finding(STEP, Outcome.DOUBTFUL, _DOUBT)
        self._kept = window[-self._overlap :] if self._overlap else ""


def fold(text: str) -> str:
    """Return text as it is compared: UTF-32 read as UTF-16 has a NUL behind each letter."""
    return text.casefold().replace("\0", "")


def _decoder_for(head: bytes) -> codecs.IncrementalDecoder:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")(errors="replace")
    return codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
