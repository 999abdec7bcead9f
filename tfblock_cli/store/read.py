"""Read the result of an earlier run."""

import json
from pathlib import Path
from typing import Any, NoReturn

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.store.record import SCHEMA, SCHEMA_VERSION
from tfblock_cli.store.write import TEMPORARY


def read(path: Path) -> dict[str, Any]:
    """The record in a run's folder, or in a ``result.json``.

    Raises:
        BadInput: There is none, it is broken, or a newer tfblock wrote it.
    """
    file = path / "result.json" if path.is_dir() else path

    def refuse(message: str) -> NoReturn:
        raise BadInput(Problem(str(file), message))

    if file.absolute().parent.name.startswith(TEMPORARY):
        refuse("the run was interrupted before it was saved; run it again")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        refuse(f"cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested beyond any result
        refuse(f"is not JSON: {error}")
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        refuse(f'is not a result of tfblock: its "schema" is not "{SCHEMA}"')
    version = record.get("schema_version")
    if type(version) is not int or version < 1:
        refuse(f"schema_version {version!r} is not a version")
    if version > SCHEMA_VERSION:
        refuse(f"schema_version {version} is newer than {SCHEMA_VERSION}, the newest known here; upgrade tfblock")
    # Version 1 is the first. With version 2, a record of version 1 is upgraded here.
    return record
