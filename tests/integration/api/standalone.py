"""Serves the application until its standard input ends; prints where, and a key, as JSON.

Further arguments are failpoints to arm.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shared.core.failpoints import arm
from tests.integration.api.stack import running_stack
from tests.support.logs import plain_logs

if __name__ == "__main__":
    # Standard output carries one line for the parent, who reads no further.
    plain_logs(sys.stderr)
    url, redis_url, namespace, root, *points = sys.argv[1:]
    with running_stack(url, redis_url, namespace, Path(root)) as stack:
        arm(",".join(points))
        print(json.dumps({"url": f"{stack.address.url}/v1", "secret": stack.secret()}), flush=True)
        sys.stdin.read()
