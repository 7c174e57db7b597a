#!/usr/bin/env python3
"""Compares the guides' snippets with the examples that contain them.

Except for its indentation, every block of C++ or Python must occur in the file of
examples/ that the text before it linked last. Blocks before the first link are free.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(text):
    """The lines of `text` without indentation, which the test ignores."""
    return [line.strip() for line in text.strip().splitlines()]


def contains(lines, part):
    return any(
        lines[i : i + len(part)] == part
        for i in range(len(lines) - len(part) + 1)
    )


def check(guide):
    wrong = checked = 0
    source = None
    pieces = re.split(r"^```(?:cpp|python)\n(.*?)^```$", guide.read_text(), flags=re.S | re.M)
    for text, block in zip(pieces[0::2], pieces[1::2]):
        links = re.findall(r"\(\.\./\.\./(examples/\w+\.(?:cc|py))\)", text)
        source = links[-1] if links else source
        if source is None:
            continue
        checked += 1
        if contains(lines_of((ROOT / source).read_text()), lines_of(block)):
            continue
        wrong += 1
        print(f"{guide.relative_to(ROOT)}: not in {source}:\n{block}")
    return wrong, checked


def main():
    results = [check(guide) for guide in (ROOT / "docs" / "guides").glob("*.md")]
    wrong = sum(result[0] for result in results)
    checked = sum(result[1] for result in results)
    print(f"{checked} snippets, {wrong} not found")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
