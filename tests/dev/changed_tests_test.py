"""Plants a small repository and asks scripts/changed_tests which tests a change
concerns."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/changed_tests"
FILES = {
    "src/low/number.h": "",
    "src/low/number.cc": '#include "src/low/number.h"\n',
    "src/low/number_test.cc": '#include "src/low/number.h"\nTEST(Number, Adds) {}\n',
    "include/lockstep/low/shown.h": "",
    "src/low/shown.cc": '#include "lockstep/low/shown.h"\n',
    "include/lockstep/low/many.h": "",
    "src/low/one_of_many.cc": '#include "lockstep/low/many.h"\n',
    "src/other/user_test.cc": "#include <lockstep/low/many.h>\nTEST(User, Calls) {}\n",
    "src/high/sum.h": '#include "src/low/number.h"\n',
    "src/high/sum_test.cc": '#include "src/high/sum.h"\nTEST_P(Sum, Adds) {}\n',
    "src/other/word_test.cc": "#include <lockstep/low/shown.h>\nTEST_F(Word, Is) {}\n",
    "tests/whole/whole_test.py": "",
    "tests/program/command.h": "",
    "tests/program/run_test.cc": '#include "command.h"\nTEST(Run, Ends) {}\n',
    "CMakeLists.txt": "",
}
NAMES = ("Number.Adds", "All/Sum.Adds/Few", "Sum", "Word.Is", "Words.Are", "whole.a", "Run.Ends", "User.Calls")


class ChangedTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")
        self.build = self.root / "build"
        self.build.mkdir()
        lists = self.root / "tests/whole/CMakeLists.txt"
        (self.build / "CTestTestfile.cmake").write_text(
            "add_test(whole.a true)\nset_tests_properties(whole.a PROPERTIES "
            f'_BACKTRACE_TRIPLES "{lists};1;add_test;{lists};0;")\n')

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
                       cwd=self.root, check=True)

    def concerned(self, *changed):
        for name in changed:
            with (self.root / name).open("a") as file:
                file.write("// changed\n")
        regex = subprocess.run(
            [SCRIPT, "HEAD", self.build], cwd=self.root, check=True, text=True,
            capture_output=True).stdout.strip()
        return {name for name in NAMES if regex and re.search(regex, name)}

    def test_of_a_header_are_those_that_include_it(self):
        self.assertEqual(self.concerned("src/low/number.h"),
                         {"Number.Adds", "Sum", "All/Sum.Adds/Few"})

    def test_of_a_source_file_are_those_of_its_headers_and_its_room(self):
        self.assertEqual(self.concerned("src/low/shown.cc"),
                         {"Number.Adds", "Word.Is"})

    def test_of_one_of_several_source_files_of_a_header_are_those_that_include_that(self):
        self.assertEqual(self.concerned("src/low/one_of_many.cc"),
                         {"Number.Adds", "User.Calls"})

    def test_of_a_test_are_those_of_its_room(self):
        self.assertEqual(self.concerned("src/high/sum_test.cc"),
                         {"Sum", "All/Sum.Adds/Few"})

    def test_of_a_folder_of_tests_are_those_that_it_adds(self):
        self.assertEqual(self.concerned("tests/whole/whole_test.py"), {"whole.a"})

    def test_of_a_folder_of_tests_are_its_suites(self):
        self.assertEqual(self.concerned("tests/program/command.h"), {"Run.Ends"})

    def test_of_a_file_that_git_does_not_know_yet_count(self):
        self.assertEqual(self.concerned("src/other/new.cc"), {"Word.Is", "User.Calls"})

    def test_of_the_build_are_all(self):
        self.assertEqual(self.concerned("CMakeLists.txt"), set(NAMES))

    def test_of_nothing_are_none(self):
        self.assertEqual(self.concerned(), set())


if __name__ == "__main__":
    unittest.main()
