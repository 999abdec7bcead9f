"""WHAT IT COSTS, added up from the spec alone, without torch; ``params --verify`` holds it against the built model."""
