"""YARA rules over the whole content, in the sandbox. Optional: needs the package `yara-python`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.review.reviewers.finding import Finding, Outcome

_CHUNK_BYTES = 1024 * 1024


def judge(order: dict[str, Any], read: Callable[[int], bytes]) -> list[Finding]:
    """Match the rules of `order["spec"]`; the first one that matches decides."""
    step, spec = order["step"], order["spec"]
    try:
        import yara
    except ImportError:
        return [Finding(step, Outcome.ERROR, "yara-python is not installed here")]
    try:
        # Rules come from tenants: they include no files of ours.
        rules = yara.compile(source=spec["rules"], includes=False)
    except yara.Error as error:
        return [Finding(step, Outcome.ERROR, f"the rules cannot be compiled: {error}"[:300])]
    content = bytearray()
    while len(content) <= spec["max_bytes"] and (chunk := read(_CHUNK_BYTES)):
        content += chunk
    try:
        matches = rules.match(data=bytes(content))
    except yara.Error as error:
        return [Finding(step, Outcome.ERROR, f"YARA failed: {error}"[:300])]
    if matches:
        names = ", ".join(str(match.rule) for match in matches[:5])
        return [Finding(step, Outcome(spec["found"]), f"rule {names}"[:300])]
    return [Finding(step, Outcome.PASS)]
