"""Reports: one result, shown."""
