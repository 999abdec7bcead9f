"""WHAT was asked: frozen, strict descriptions of an experiment. No torch here."""
