"""Plants types in a folder, and expects scripts/check_names to find those that
two files define."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class CheckNames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def plant(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(self, repository=None):
        result = subprocess.run(
            [sys.executable, REPOSITORY / "scripts/check_names",
             repository or self.folder],
            capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_finds_nothing_in_the_repository_as_it_is(self):
        self.assertEqual(self.check(REPOSITORY), (0, ""))

    def test_finds_a_type_that_two_files_define(self):
        for kind in ("struct Share {", "class Share final : public A<int> {",
                     "enum class Share : int {",
                     "template <class T>\nclass alignas(64) Share {"):
            with self.subTest(kind):
                self.plant("include/one.h", f"namespace x {{\n{kind} }};\n}}\n")
                self.plant("src/two.cc", "namespace x { struct Share {}; }\n")
                code, text = self.check()
                self.assertEqual(code, 1, text)
                self.assertEqual(text, "x::Share is defined in include/one.h "
                                       "and in src/two.cc\n")

    def test_allows_one_name_in_two_scopes(self):
        self.plant("src/one.h", "namespace x { struct Share { struct Part {}; }; }")
        self.plant("src/two.h", "namespace y { struct Share {}; }\n"
                            "namespace x { struct Other { struct Part {}; }; }")
        self.plant("src/three.cc", "namespace x { namespace { struct Share {}; } }\n"
                               "namespace x { void f() { struct Share {}; } }\n"
                               "namespace x { class Share; }\n"
                               "namespace x { struct Other::Share {}; }\n"
                               'const char* kText = "namespace x { struct '
                               'Share {}; }"; // struct Share {')
        self.assertEqual(self.check(), (0, ""))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
