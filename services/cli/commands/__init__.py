"""The commands of `blox`, one file per subject."""
