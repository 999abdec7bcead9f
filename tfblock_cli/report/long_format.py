"""CSV in long format: every number of ``gradflow`` is a line, as R, pandas and spreadsheets like it."""

import csv
from collections.abc import Iterable
from io import StringIO

from tfblock_cli.results.gradflow import GradflowData, Row
from tfblock_cli.results.result import Result
from tfblock_cli.results.target_gradflow import TargetGradflowData


def to_csv(results: Iterable[Result[GradflowData | TargetGradflowData]]) -> str:
    """The rows of all results, the experiment's name in front; numbers with all their digits."""
    file = StringIO()
    columns = ["experiment", *Row._fields]
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for result in results:
        for row in result.data.rows:
            writer.writerow({"experiment": result.experiment.get("name", "")} | row._asdict())
    return file.getvalue()
