"""Write a file, whole or not at all."""

import os
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Under another name first: whoever reads the file, whenever, finds all of it or nothing.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
