"""The documents, and comments in code, name only files that exist; the documents
also only commands and flags that exist.

A path counts where it stands in backticks and begins with a folder of the
repository or ends as a source file does (`name.*` is any ending), or is the
target of a link. Commands count where code begins with `lockstep`.
"""
import os
import re
import subprocess
import sys
import unittest
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("LOCKSTEP_COMMAND", "")
FOLDERS = "include|src|apps|docs|tests|examples|benchmarks|scripts|cmake"
PATH = re.compile(r"`((?:%s)/[\w./*-]*|(?:[\w-]+/)*[\w-]+\.(?:h|cc|inc|\*))`"
                  % FOLDERS)
# In a comment: below the root, or as a user includes it.
COMMENT = re.compile(r"// .*")
COMMENTED = re.compile(r"(?<![\w/.<-])((?:%s|lockstep)/[\w/-]+\.(?:h|cc|py|md))\b"
                       % FOLDERS)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SECTION = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
CALL = re.compile(r"lockstep ([a-z]+)\b(.*)")
FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
# What readers make or others have, and placeholders in capitals.
NOT_OURS = re.compile(r"[A-Z]{3}|^[A-Z]|^lockstep/\w+-\w+\.|^(program|main|my_\w+)\.|"
                      r"^(torch|c10|ATen)/")


def documents():
    found = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    return found + sorted((REPOSITORY / "docs").rglob("*.md"))


@cache
def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, text=True,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        return listed.stdout.splitlines()
    return [path.relative_to(REPOSITORY).as_posix()
            for path in REPOSITORY.rglob("*") if path.is_file()]


@cache
def exists(path):
    """Whether a file ends like this, or a folder of the repository is it."""
    if (REPOSITORY / path).exists():
        return True
    pattern = re.compile(
        "(^|/)" + re.escape(path).replace(r"\*", r"[\w.-]*") + "$")
    return any(pattern.search(name) for name in tracked())


def code_of(line):
    """The pieces of code in a line of a document."""
    if line.startswith("    "):
        return [line.strip()]
    return re.findall(r"`([^`]+)`", line)


@cache
def sections_of(document):
    """The names by which links know its headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"),
                  flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*)", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in headings}


@cache
def help_of(command):
    return subprocess.run([COMMAND, command, "--help"], text=True,
                          capture_output=True, check=False)


class Documents(unittest.TestCase):
    def problems(self, check):
        for document in documents():
            text = document.read_text(encoding="utf-8")
            for number, line in enumerate(text.splitlines(), 1):
                for problem in check(document, line):
                    yield (f"{document.relative_to(REPOSITORY)}:{number}: "
                           f"{problem}")

    def expect_none(self, check):
        self.maxDiff = None
        self.assertEqual("\n".join(self.problems(check)), "")

    def test_name_files_that_exist(self):
        self.expect_none(lambda document, line: (
            f"{path} does not exist" for path in PATH.findall(line)
            if not NOT_OURS.search(path) and not exists(path)))

    def test_name_sections_that_exist(self):
        self.expect_none(lambda document, line: (
            f"{name}#{section} is no heading" for name, section
            in SECTION.findall(line)
            if section not in sections_of((document.parent / name).resolve()
                                          if name else document)))

    def test_code_names_files_that_exist(self):
        code = [name for name in tracked()
                if name.endswith((".h", ".cc"))]
        found = []
        for name in code:
            text = (REPOSITORY / name).read_text(encoding="utf-8")
            comments = "\n".join(COMMENT.findall(text))
            found += [f"{name}: {path} does not exist"
                      for path in COMMENTED.findall(comments)
                      if not exists(path) and not exists("include/" + path)]
        self.assertGreater(len(code), 500)
        self.assertEqual(found, [])

    def test_link_to_files_that_exist(self):
        self.expect_none(lambda document, line: (
            f"the link to {target} leads nowhere"
            for target in LINK.findall("" if line.startswith("    ") else line)
            if not target.isidentifier() and not (document.parent / target).exists()))

    @unittest.skipUnless(COMMAND, "LOCKSTEP_COMMAND is not set")
    def test_name_commands_and_flags_that_exist(self):
        commands = re.findall(r"(?m)^  ([a-z]+) ", subprocess.run(
            [COMMAND, "--help"], text=True, capture_output=True,
            check=True).stdout)
        self.assertIn("train", commands)

        def check(document, line):
            for code in code_of(line):
                call = CALL.match(code)
                # `lockstep record` and the like are names of formats.
                if not call or "formats" in document.parts:
                    continue
                command, rest = call.groups()
                if command not in commands:
                    yield f"lockstep {command} is not a command"
                    continue
                known = help_of(command).stdout
                if command == "scale":
                    known += help_of("train").stdout
                if command == "run":  # the program has flags of its own
                    rest = re.split(r"\s(?=lockstep |\S*/|\w+\.py)", rest)[0]
                for flag in FLAG.findall(rest.split("#")[0]):
                    if not re.search(rf"{flag}(?![\w-])", known):
                        yield f"lockstep {command} does not know {flag}"
        self.expect_none(check)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
