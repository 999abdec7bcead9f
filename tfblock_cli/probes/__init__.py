"""MEASURE. One file or folder per question; each has ``run(experiment, ...) -> Result``."""
