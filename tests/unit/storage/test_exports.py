from __future__ import annotations

import subprocess
import sys

import shared.storage


def test_what_is_exported_exists() -> None:
    assert sorted(shared.storage.__all__) == shared.storage.__all__
    for name in shared.storage.__all__:
        assert getattr(shared.storage, name) is not None


def test_directories_need_no_boto3() -> None:
    code = "import sys, shared.storage; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
