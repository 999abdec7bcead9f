"""Keep a result: one folder per run, read back by other programs."""
