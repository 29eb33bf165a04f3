#!/usr/bin/env python3
"""Counts the cases of a JUnit file (ctest, pytest): prints "passed failed skipped"; failures, skip reasons to stderr.

A case that was not run for any reason but its own decision to skip counts as failed. Exits 1 when no case ran.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

OWN_SKIPS = ("SKIP_REGULAR_EXPRESSION_MATCHED", "SKIP_RETURN_CODE")


def skip_reason(output: str) -> str:
    """The line after GoogleTest's "file:line: Skipped", or the last line of another program."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line, following in zip(lines, lines[1:], strict=False):
        if line.endswith(": Skipped"):
            return following
    return lines[-1] if lines else "no reason given"


def main() -> int:
    path = Path(sys.argv[1])
    if not path.exists():
        print(f"count_tests: {path} is missing, so ctest did not finish", file=sys.stderr)
        return 1
    passed = failed = skipped = 0
    reasons: dict[str, int] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        skip = case.find("skipped")
        of_pytest = case.get("status") is None
        failure = next((found for tag in ("failure", "error") if (found := case.find(tag)) is not None), None)
        if of_pytest and failure is not None:
            failed += 1
            print(f"FAILED {case.get('classname')}.{case.get('name')}\n{failure.text}", file=sys.stderr)
        elif of_pytest and skip is not None:
            skipped += 1
            reason = skip.get("message") or "no reason given"
            reasons[reason] = reasons.get(reason, 0) + 1
        elif of_pytest or case.get("status") == "run":
            passed += 1
        elif skip is not None and (skip.get("message") or "").startswith(OWN_SKIPS):
            skipped += 1
            reason = skip_reason(output)
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            failed += 1
            why = f"not run: {skip.get('message')}" if skip is not None else f"{float(case.get('time') or 0):.1f} s"
            tail = "\n".join(output.splitlines()[-60:])
            print(f"FAILED {case.get('name')} ({why})\n{tail}", file=sys.stderr)
    for reason, count in reasons.items():
        print(f"skipped {count}: {reason}", file=sys.stderr)
    print(passed, failed, skipped)
    return 0 if passed + failed + skipped > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
