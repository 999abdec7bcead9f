"""Results: plain data, JSON-ready, without torch and without Rich."""
