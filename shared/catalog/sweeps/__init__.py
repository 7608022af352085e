"""The scheduler's sweeps: what executions that died left behind is found, agreed on twice, removed.

Every sweep stays away from what is young and from what any row names, removes a bounded number of
things per pass, and touches nothing after an error while listing.
"""
