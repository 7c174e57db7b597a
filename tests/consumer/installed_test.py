"""Tests an installed Lockstep: programs that run from any folder, wherever the
prefix was moved, and a project that builds Lockstep as a part."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/train"))
from train_data import WithSmallData

BUILD = os.environ["LOCKSTEP_TEST_BUILD"]
TORCH = os.environ["LOCKSTEP_TEST_TORCH"]
# `./dev` installs Ninja and no make.
FLAGS = ["-G", "Ninja", *os.environ["LOCKSTEP_TEST_CMAKE_FLAGS"].split(";")]
TRAIN = ("--model=mlp", "--hidden=16", "--epochs=1", "--global-batch-size=32")


def plain_environment(**variables):
    """The environment of a new shell, without variables of Lockstep or a LibTorch."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("LOCKSTEP_") and name != "LD_LIBRARY_PATH"}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def run(*command, cwd=None, **variables):
    return subprocess.run([str(word) for word in command], cwd=cwd,
                          env=plain_environment(**variables),
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)


def project_of_the_guide(how):
    """The guide's CMakeLists.txt that uses Lockstep by `how`."""
    guide = (REPOSITORY / "docs/guides/install.md").read_text(encoding="utf-8")
    block, = (block for block in re.findall(r"(?ms)^```cmake\n(.*?)^```$", guide)
              if how in block)
    return block


class Installed(WithSmallData):
    prefix = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        first = Path(folder.name) / "first"
        installed = run("cmake", "--install", BUILD, "--prefix", first)
        assert installed.returncode == 0, installed.stderr
        cls.prefix = Path(folder.name) / "moved"
        first.rename(cls.prefix)

    def setUp(self):
        super().setUp()
        self.empty = self.folder / "empty"
        self.empty.mkdir()

    def lockstep(self, *words, command=None, status=0, **variables):
        result = run(command or self.prefix / "bin/lockstep", *words,
                     cwd=self.empty, **variables)
        self.assertEqual(result.returncode, status,
                         f"{words}: {result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def test_trains_evaluates_and_predicts(self):
        data = f"--data-dir={self.data}"
        self.lockstep("train", "-n", 2, data, *TRAIN, "--output=m.safetensors")
        self.assertIn("on 2 ranks", self.lockstep("evaluate", "m.safetensors",
                                                  "-n", 2, data))
        self.lockstep("predict", "m.safetensors", data, "--output=p.csv")
        self.assertTrue((self.empty / "p.csv").exists())

    def test_scales_and_measures(self):
        data = f"--data-dir={self.data}"
        said = self.lockstep("scale", "--ranks=1,2", data, "--model=mlp",
                             "--epochs=2")
        self.assertIn("speed-up", said)
        self.assertIn("all_reduce", self.lockstep(
            "bench", "all_reduce", "-n", 2, "--bytes=4..64K"))

    def test_loads_the_standard_library_before_libtorchs_copies_of_it(self):
        said = run("readelf", "-d", self.prefix / "bin/lockstep-train").stdout
        libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", said)
        torch = [name for name in libraries if name.startswith("libtorch")]
        self.assertTrue(torch, said)
        self.assertLess(libraries.index("libstdc++.so.6"),
                        libraries.index(torch[0]), said)

    def libraries(self):
        """What a program of the package's links besides LibTorch."""
        config, = self.prefix.rglob("lockstepConfig.cmake")
        named = re.search(r"foreach\(lockstep_file (.*)\)", config.read_text())
        return named[1].split(";")

    def test_names_a_library_that_is_missing(self):
        config, = self.prefix.rglob("lockstepConfig.cmake")
        copy = shutil.copytree(config.parent, self.folder / "package")
        text = config.read_text()
        missing = self.libraries()[0]
        (copy / config.name).write_text(text.replace(missing, "/lib/gone.so.1"))
        (self.empty / "CMakeLists.txt").write_text(project_of_the_guide("find_package"))
        result = run("cmake", "-S", self.empty, "-B", self.folder / "build",
                     f"-Dlockstep_DIR={copy}", *FLAGS)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("Lockstep was built with /lib/gone.so.1", result.stderr)

    def test_programs_load_every_library_that_a_user_links(self):
        # So the Debian package, which depends on the libraries of its programs,
        # depends on those of its users' programs too.
        programs = [*(self.prefix / "bin").iterdir()]
        said = run("readelf", "-d", *programs).stdout
        loaded = set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
        self.assertGreater(len(self.libraries()), 5)
        for library in self.libraries():
            self.assertIn(Path(library).name, loaded)

    def test_has_the_license_and_the_documents(self):
        documents = self.prefix / "share/doc/lockstep"
        for name in ("LICENSE", "copyright"):
            self.assertEqual((documents / name).read_text(),
                             (REPOSITORY / "LICENSE").read_text())
        lead_nowhere = [
            f"{page}: {link}"
            for page in [documents / "README.md",
                         *documents.glob("docs/guides/*.md")]
            for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)",
                                   page.read_text())
            if not link.isidentifier() and not (page.parent / link).exists()]
        self.assertEqual(lead_nowhere, [])

    def test_is_found_by_the_guides_lines(self):
        (self.empty / "CMakeLists.txt").write_text(project_of_the_guide("find_package"))
        shutil.copy(REPOSITORY / "examples/quickstart.cc", self.empty)
        result = run("cmake", "-S", self.empty, "-B", self.folder / "build",
                     f"-DCMAKE_PREFIX_PATH={self.prefix}", *FLAGS)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_doctor_starts_what_trains(self):
        said = self.lockstep("doctor")
        self.assertRegex(said, r"ok  LibTorch +lockstep-train \S+, LibTorch ")
        self.assertIn(str(self.prefix), said)
        self.assertIn("Training on this host works.", said)

    def test_a_torch_that_is_gone_is_told_and_another_named(self):
        copy = self.folder / "copy"
        shutil.copytree(self.prefix / "bin", copy / "bin")
        script = self.folder / "forget.cmake"
        script.write_text(f'file(RPATH_REMOVE FILE "{copy}/bin/lockstep-train")')
        self.assertEqual(run("cmake", "-P", script).returncode, 0)
        command = copy / "bin/lockstep"
        said = self.lockstep("doctor", command=command, status=1)
        self.assertRegex(said, r"NO  LibTorch .*does not start: .*libtorch")
        self.assertIn("Training on this host does not work.", said)
        self.assertIn("LOCKSTEP_TORCH", said)
        named = {"LOCKSTEP_TORCH": TORCH}
        self.assertIn("Training on this host works.",
                      self.lockstep("doctor", command=command, **named))
        self.lockstep("train", "-n", 2, f"--data-dir={self.data}", *TRAIN,
                      command=command, **named)
        self.assertIn("cannot be read", self.lockstep(
            "train", "-n", 2, command=command, status=2,
            LOCKSTEP_TORCH="/nowhere"))


class Subproject(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)

    def configure(self, **variables):
        return run("cmake", "-S", Path(__file__).parent / "subproject", "-B",
                   self.build,
                   f"-DLOCKSTEP_SOURCE={REPOSITORY}", *FLAGS, **variables)

    def test_is_built_by_add_subdirectory(self):
        # The LibTorch of the python3 on the path.
        python = Path(TORCH).resolve().parents[3] / "bin"
        path = f"{python}:{os.environ['PATH']}"
        result = self.configure(PATH=path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        built = run("cmake", "--build", self.build, "--target", "own")
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        self.assertEqual(run(self.build / "own").stdout, "2\n")

    def test_is_a_part_by_the_guides_lines(self):
        for how, flags in (
                ("add_subdirectory", ()),
                # A clone that is there already, so that nothing is fetched.
                ("FetchContent", (
                    f"-DFETCHCONTENT_SOURCE_DIR_LOCKSTEP={REPOSITORY}",))):
            with self.subTest(how):
                project = self.build / how
                project.mkdir()
                (project / "CMakeLists.txt").write_text(project_of_the_guide(how))
                (project / "lockstep").symlink_to(REPOSITORY)
                shutil.copy(REPOSITORY / "examples/quickstart.cc", project)
                result = run("cmake", "-S", project, "-B", project / "build",
                             *flags, *FLAGS, LOCKSTEP_TORCH=TORCH)
                self.assertEqual(result.returncode, 0,
                                 result.stdout + result.stderr)
        # Not linked, which would need the whole library.
        program = "CMakeFiles/quickstart.dir/quickstart.cc.o"
        built = run("cmake", "--build", project / "build", "--target", program)
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)

    def test_says_what_to_do_without_a_torch(self):
        result = self.configure(LOCKSTEP_TORCH="/nowhere")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('No LibTorch at LOCKSTEP_TORCH="/nowhere"', result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
