"""The origin service: fetches keys that a bucket does not have from where its rules say."""
