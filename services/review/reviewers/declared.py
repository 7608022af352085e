"""The declared content type against what the first bytes show."""

from __future__ import annotations

from services.review.reviewers.finding import Facts, Finding, Outcome, severity_outcome
from services.review.reviewers.sniffing import Sniffed

STEP = "declared_type"

#: Types that claim nothing.
_UNCLAIMED = frozenset(
    {"", "application/octet-stream", "binary/octet-stream", "application/binary"}
)

#: Names of one format, or formats that share one signature.
_FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({"image/jpeg", "image/jpg", "image/pjpeg"}),
    frozenset({"image/png", "image/x-png", "image/apng", "image/vnd.mozilla.apng"}),
    frozenset({"image/bmp", "image/x-bmp", "image/x-ms-bmp"}),
    frozenset({"image/x-icon", "image/vnd.microsoft.icon"}),
    frozenset({"image/tiff", "image/x-canon-cr2", "image/x-adobe-dng", "image/x-nikon-nef"}),
    frozenset(
        {
            "image/heic",
            "image/heif",
            "image/avif",
            "video/mp4",
            "audio/mp4",
            "video/x-m4v",
            "audio/x-m4a",
            "audio/m4a",
            "video/quicktime",
            "video/3gpp",
            "video/3gpp2",
        }
    ),
    frozenset({"video/webm", "audio/webm", "video/x-matroska", "audio/x-matroska"}),
    frozenset({"audio/ogg", "video/ogg", "application/ogg", "audio/opus"}),
    frozenset({"audio/mpeg", "audio/mp3", "audio/x-mpeg", "audio/aac", "audio/x-aac"}),
    frozenset({"audio/x-wav", "audio/wav", "audio/wave", "audio/vnd.wave"}),
    frozenset({"audio/x-flac", "audio/flac"}),
    frozenset({"audio/x-aiff", "audio/aiff"}),
    frozenset({"video/x-msvideo", "video/avi", "video/msvideo"}),
    frozenset(
        {
            "application/gzip",
            "application/x-gzip",
            "application/x-tgz",
            "application/x-compressed-tar",
        }
    ),
    frozenset({"application/x-bzip2", "application/x-bzip"}),
    frozenset({"application/x-rar-compressed", "application/vnd.rar", "application/x-rar"}),
    frozenset(
        {
            "application/x-msdownload",
            "application/vnd.microsoft.portable-executable",
            "application/x-dosexec",
        }
    ),
    frozenset(
        {
            "application/x-executable",
            "application/x-elf",
            "application/x-sharedlib",
            "application/x-pie-executable",
            "application/x-object",
        }
    ),
    frozenset(
        {
            "application/x-deb",
            "application/vnd.debian.binary-package",
            "application/x-unix-archive",
            "application/x-archive",
        }
    ),
    frozenset({"application/x-sqlite3", "application/vnd.sqlite3"}),
    frozenset({"application/font-sfnt", "font/sfnt", "font/ttf", "font/otf"}),
    frozenset({"application/font-woff", "font/woff", "font/woff2"}),
    frozenset(
        {
            "application/msword",
            "application/vnd.ms-excel",
            "application/vnd.ms-powerpoint",
            "application/vnd.ms-outlook",
            "application/x-ole-storage",
        }
    ),
    frozenset({"application/rtf", "text/rtf", "text/richtext"}),
)
#: Signatures that also stand at the head of formats built on them.
_ZIP_BASED = (
    "application/vnd.openxmlformats-",
    "application/vnd.oasis.opendocument.",
    "application/vnd.ms-",
    "application/vnd.android.",
)
_ZIP_NAMES = frozenset(
    {
        "application/zip",
        "application/x-zip-compressed",
        "application/epub+zip",
        "application/java-archive",
        "application/x-java-archive",
    }
)
#: A file that claims one of these and does not show its signature is something else.
_UNMISTAKABLE = frozenset({
    "image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "image/tiff", "image/bmp",
    "image/heic", "image/avif", "application/pdf", "application/zip", "application/gzip",
    "application/x-7z-compressed", "application/x-rar-compressed", "application/vnd.rar",
    "application/epub+zip", "video/webm", "video/x-matroska", "audio/x-flac", "audio/flac",
})  # fmt: skip
_TEXT_NAMES = frozenset({
    "application/json", "application/xml", "application/javascript", "application/x-javascript",
    "application/ecmascript", "application/yaml", "application/x-yaml", "application/toml",
    "application/sql", "application/x-sh", "application/x-ndjson", "application/graphql",
    "application/x-python", "image/svg+xml",
})  # fmt: skip


def review(facts: Facts, sniffed: Sniffed, *, type_mismatch: str) -> Finding:
    """Compare; a mismatch weighs what the policy says. Empty content shows nothing and passes."""
    declared = facts.content_type.partition(";")[0].strip().lower()
    if type_mismatch == "ignore" or not facts.size or agrees(declared, sniffed):
        return Finding(STEP, Outcome.PASS)
    seen = sniffed.mime or ("text" if sniffed.is_text else "an unknown binary format")
    return Finding(
        STEP, severity_outcome(type_mismatch), f"declared {declared[:100]}, the content is {seen}"
    )


def agrees(declared: str, sniffed: Sniffed) -> bool:
    """Tell whether content that shows `sniffed` may call itself `declared`."""
    if declared in _UNCLAIMED:
        return True
    if is_textual(declared):
        return sniffed.is_text and (
            sniffed.mime is None or declared.startswith("text/") or declared == sniffed.mime
        )
    if sniffed.mime is not None:
        return _same_format(declared, sniffed.mime)
    if sniffed.is_text:
        return not _is_media(declared) and declared not in _UNMISTAKABLE
    return declared not in _UNMISTAKABLE


def is_textual(declared: str) -> bool:
    """Tell whether a declared type promises text."""
    return (
        declared.startswith("text/")
        or declared in _TEXT_NAMES
        or declared.endswith(("+json", "+xml", "+yaml"))
    )


def _same_format(declared: str, seen: str) -> bool:
    if declared == seen:
        return True
    if _is_zip_based(seen) and _is_zip_based(declared):
        # The library tells the inner format only when the archive's order of entries is usual.
        return "application/zip" in {seen, declared} or seen in _ZIP_NAMES or declared in _ZIP_NAMES
    return any(declared in family and seen in family for family in _FAMILIES)


def _is_zip_based(name: str) -> bool:
    return name in _ZIP_NAMES or name.endswith("+zip") or name.startswith(_ZIP_BASED)


def _is_media(declared: str) -> bool:
    return declared.startswith(("image/", "audio/", "video/", "font/"))
