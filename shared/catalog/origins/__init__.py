"""Objects that a bucket does not have yet and fetches from elsewhere: rules, pulls, misses."""
