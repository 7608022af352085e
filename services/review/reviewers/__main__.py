"""The process in which reviewers read content: one JSON line in, then the bytes; one JSON line out.

It limits itself before it touches the first byte; `services.review.sandbox` starts and kills it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from services.review.reviewers import declared, keywords
from services.review.reviewers.finding import Facts, Finding, Outcome
from services.review.reviewers.sniffing import HEAD_BYTES, sniff

_CHUNK_BYTES = 256 * 1024

_PR_SET_PDEATHSIG = 1

_Judge = Callable[[dict[str, Any], Callable[[int], bytes]], list[Finding]]


def judge(order: dict[str, Any], read: Callable[[int], bytes]) -> list[Finding]:
    """Run the steps that look at bytes; stops reading as soon as the answers stand.

    `order` holds `facts`, `type_mismatch`, `reject` and `doubtful` (keyword lists).
    """
    facts = Facts(**order["facts"])
    head = _read_exactly(read, min(HEAD_BYTES, facts.size))
    sniffed = sniff(head)
    findings = [declared.review(facts, sniffed, type_mismatch=order["type_mismatch"])]
    if findings[0].outcome is Outcome.REJECT or not (order["reject"] or order["doubtful"]):
        return findings
    # Also behind the signature of a format in letters: it may be declared as plain text.
    if not sniffed.is_text:
        return [*findings, Finding(keywords.STEP, Outcome.PASS, "not text")]
    scan = keywords.KeywordScan(reject=order["reject"], doubtful=order["doubtful"])
    chunk = head
    while chunk and scan.feed(chunk):
        chunk = read(_CHUNK_BYTES)
    return [*findings, scan.finish()]


def _reviewer(name: str) -> _Judge:
    """Return a reviewer by name. What an optional one needs is loaded for it alone."""
    if name == "yara":
        from services.review.reviewers import yara_rules

        return yara_rules.judge
    if name == "image":
        from services.review.reviewers import image

        return image.judge
    return judge


def limit_this_process(*, memory_bytes: int, cpu_seconds: int) -> None:
    """Bound memory and processor time; forbid children, writing files, opening more than a few."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    # No child processes and no threads; root is not bound by it, its group is killed all the same.
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    _die_with_parent()


def _die_with_parent() -> None:
    """Let the kernel end this process when the worker that reads its answer is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Read one order and its content from standard input, answer on standard output."""
    stream = io.BufferedReader(io.FileIO(0, closefd=False))
    order = json.loads(stream.readline())
    limit_this_process(
        memory_bytes=order["limits"]["memory_bytes"], cpu_seconds=order["limits"]["cpu_seconds"]
    )
    findings = _reviewer(order["reviewer"])(order, stream.read1)
    answer = [[finding.step, finding.outcome.value, finding.detail] for finding in findings]
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = read(size - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main()
