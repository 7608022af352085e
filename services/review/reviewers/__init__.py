"""The built-in reviewers: pure judgements of one content, cheap ones first.

Each module has one reviewer. They see facts and bytes, never a database or a channel, so that they
can run in a process of their own (`__main__`), which is killed when it takes too much.
"""
