#!/usr/bin/env python3
"""Counts the lines in which horovod.cc differs from one_process.cc: a loop for
one process becomes one for all ranks by 6 to 8 lines, which are marked, and the
header of Horovod's names."""
import difflib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
MARK = "// (*)"


def code_of(name):
    """The lines of code without includes, space and comments, which the test
    ignores."""
    lines = (HERE / name).read_text().splitlines()
    return [
        line.replace(MARK, "").strip()
        for line in lines
        if line.strip() and not line.strip().startswith(("//", "#include"))
    ]


def main():
    before, after = code_of("one_process.cc"), code_of("horovod.cc")
    differing = [
        line for line in difflib.ndiff(before, after) if line.startswith("+ ")
    ]
    print("\n".join(differing))
    marked = (HERE / "horovod.cc").read_text().count(MARK) - 1  # the heading's
    print(f"{len(differing)} lines differ, {marked} statements are marked")
    return 0 if 6 <= len(differing) <= 8 and marked >= 6 else 1


sys.exit(main())
