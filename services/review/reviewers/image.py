"""Images: that they decode, how large they are, and what a classifier says, in the sandbox.

Optional: needs the package `pillow`. A classifier is an entry point of the group
`cloudblox.image_classifiers`: called with the decoded image, it returns a score from 0 to 1.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from services.review.reviewers.finding import Finding, Outcome

CLASSIFIERS = "cloudblox.image_classifiers"
_CHUNK_BYTES = 1024 * 1024
#: Drawn by a browser, not decoded: no picture of points.
_NOT_RASTER = frozenset({"image/svg+xml"})


def judge(order: dict[str, Any], read: Callable[[int], bytes]) -> list[Finding]:
    """Judge content that is declared as an image by `order["spec"]`; anything else passes."""
    step, spec = order["step"], order["spec"]
    declared = order["facts"]["content_type"].partition(";")[0].strip().lower()
    if not declared.startswith("image/") or declared in _NOT_RASTER:
        return [Finding(step, Outcome.PASS, "not declared as a picture")]
    try:
        from PIL import Image
    except ImportError:
        return [Finding(step, Outcome.ERROR, "pillow is not installed here")]
    content = bytearray()
    while len(content) <= spec["max_bytes"] and (chunk := read(_CHUNK_BYTES)):
        content += chunk
    # Ours is the limit: it is looked at before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    found = Outcome(spec["found"])
    try:
        with Image.open(io.BytesIO(content)) as picture:
            pixels = picture.width * picture.height
            if pixels > spec["max_pixels"]:
                detail = f"{pixels} pixels, at most {spec['max_pixels']} allowed"
                return [Finding(step, found, detail)]
            picture.load()
            return [_classify(step, spec, picture)]
    except (OSError, SyntaxError, ValueError, EOFError):
        return [Finding(step, found, "the picture cannot be decoded")]


def _classify(step: str, spec: dict[str, Any], picture: Any) -> Finding:
    name = spec["classifier"]
    if not name:
        return Finding(step, Outcome.PASS)
    points = list(entry_points(group=CLASSIFIERS, name=name))
    if not points:
        return Finding(step, Outcome.ERROR, f"no classifier {name} is installed here")
    score = float(points[0].load()(picture))
    if not 0.0 <= score <= 1.0:
        return Finding(step, Outcome.ERROR, f"the classifier {name} gave no score")
    if score >= spec["reject_from"]:
        return Finding(step, Outcome.REJECT, f"{name}: {score:.3f}")
    if score >= spec["doubtful_from"]:
        return Finding(step, Outcome.DOUBTFUL, f"{name}: {score:.3f}")
    return Finding(step, Outcome.PASS, f"{name}: {score:.3f}")
