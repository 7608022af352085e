from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: A part after the other, each in a thread of its own, as a transfer sends them. What a thread
#: keeps behind its buffer holds the end of its arena in place.
CODE = """
import threading, psutil
from shared.runtime.memory import give_back_large_buffers
if {is_told}: assert give_back_large_buffers()
kept, held = [], threading.Barrier(12)
def send():
    held.wait()
    buffer = bytearray(8 * 1024 * 1024)
    kept.append(bytearray(200))
    del buffer
threads = [threading.Thread(target=send) for _ in range(12)]
before = psutil.Process().memory_info().rss
for thread in threads: thread.start()
for thread in threads: thread.join()
print((psutil.Process().memory_info().rss - before) // 2**20)
"""


def grown(*, is_told: bool) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", CODE.format(is_told=is_told)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ran.stdout)


def test_buffers_of_many_threads_go_back_to_the_system() -> None:
    assert grown(is_told=True) < 8
