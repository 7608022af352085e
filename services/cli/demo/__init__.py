"""`blox demo`: the main job on the embedded stack, shown live and judged at the end."""
