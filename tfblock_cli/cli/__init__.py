"""ASK: the command line. One file per command; no maths, no formatting."""
