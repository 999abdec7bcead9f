"""JUnit XML: every check is a test case, as CI servers show it."""

import re
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

from tfblock_cli.results.result import Check, Result

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(results: Iterable[Result[Any]]) -> str:
    """A suite per result. A check that failed is a failure, one that could not be judged an error."""
    root = ElementTree.Element("testsuites")
    for result in results:
        name = f"{result.command} {result.experiment.get('name', '')}".rstrip()
        failed = sum(check.passed is False for check in result.checks)
        undecided = sum(check.passed is None for check in result.checks)
        counts = {"tests": len(result.checks), "failures": failed, "errors": undecided, "skipped": 0}
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": _text(name), **{key: str(count) for key, count in counts.items()}}
        )
        for check in result.checks:
            _case(suite, check, f"tfblock.{result.command}")
        if result.warnings:
            out = ElementTree.SubElement(suite, "system-err")
            out.text = _text("\n".join(f"warning: {warning}" for warning in result.warnings))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, check: Check, of: str) -> None:
    name = f"{check.name} of {check.subject}" if check.subject else check.name
    case = ElementTree.SubElement(suite, "testcase", {"classname": of, "name": _text(name)})
    if check.passed is not True:
        kind = "error" if check.passed is None else "failure"
        found = f"{check.value} {check.op} {check.limit}"
        ElementTree.SubElement(case, kind, {"message": _text(check.message or found)}).text = _text(found)


def _text(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)
