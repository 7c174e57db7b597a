"""Plants a violation of each kind in a copy of include/ and src/, and expects
scripts/check_layers to name its file, its line and what is wrong."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class CheckLayers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = Path(folder.name)
        for folder in ("include", "src", "apps"):
            shutil.copytree(REPOSITORY / folder, self.copy / folder)

    def plant(self, name, text):
        path = self.copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(self):
        return subprocess.run(
            [sys.executable, REPOSITORY / "scripts/check_layers", self.copy],
            capture_output=True, text=True, check=False)

    def expect(self, *parts):
        result = self.check()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, lines)
        for part in parts:
            self.assertIn(part, lines[0])

    def test_finds_nothing_in_the_repository_as_it_is(self):
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_finds_an_include_that_points_up_the_ladder(self):
        self.plant("src/base/planted.cc",
                   '#include "lockstep/base/error.h"\n'
                   '#include "lockstep/store/store.h"\n')
        self.expect("src/base/planted.cc:2:",
                    "base includes lockstep/store/store.h")

    def test_finds_an_include_of_a_layer_beside(self):
        self.plant("src/planning/planted.h", '#include "lockstep/comm/work.h"\n')
        self.expect("planning includes lockstep/comm/work.h",
                    "may use only base")

    def test_finds_an_include_of_a_room_that_is_higher(self):
        self.plant("src/comm/operation/planted.cc",
                   '#include "lockstep/comm/process_group.h"\n')
        self.expect("src/comm/operation/planted.cc:1:",
                    "the room comm/operation includes "
                    "lockstep/comm/process_group.h",
                    "may use only itself")

    def test_finds_a_room_that_is_not_listed(self):
        self.plant("src/torch/extras/planted.h",
                   '#include "lockstep/torch/tensor_collectives.h"\n')
        self.expect("torch/extras/ is no room")

    def test_lets_tests_use_all_rooms_of_their_layer(self):
        self.plant("src/comm/operation/planted_test.cc",
                   '#include "lockstep/comm/process_group.h"\n')
        self.assertEqual(self.check().returncode, 0)

    def test_keeps_torch_out_of_the_launcher(self):
        self.plant("src/launch/planted.cc", '# include "src/torch/ddp.h"\n')
        self.expect("launch includes src/torch/ddp.h")

    def test_keeps_what_is_not_installed_out_of_public_headers(self):
        self.plant("include/lockstep/planted.h",
                   '#include "src/torch/ddp/replica.h"\n')
        self.expect("include/lockstep/planted.h:1:",
                    "the public header includes src/torch/ddp/replica.h")

    def test_keeps_the_command_out_of_what_users_include(self):
        self.plant("include/lockstep/planted.h",
                   '#include "lockstep/tools/train.h"\n')
        self.expect("include/lockstep/planted.h:1:", "lockstep/tools/train.h")

    def test_finds_libtorch_below_the_torch_layer(self):
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/util/Half.h"):
            with self.subTest(header):
                self.plant("src/comm/planted.cc", f"#include <{header}>\n")
                self.expect("comm/planted.cc:1:", header, "is of LibTorch")

    def test_finds_libtorch_that_the_command_would_load(self):
        self.plant("apps/planted.h", "#include <torch/torch.h>\n")
        self.assertEqual(self.check().returncode, 0)
        self.plant("apps/cli/planted.cc", '#include "apps/planted.h"\n')
        self.expect("apps/planted.h:1:",
                    "reached from apps/cli/planted.cc")

    def test_finds_cuda_and_nccl_outside_their_folders(self):
        for name, header in (("src/comm/shm/planted.cc", "cuda_runtime.h"),
                             ("src/comm/planted.cc", "nccl.h"),
                             ("src/evaluate/planted.cc", "c10/cuda/CUDAStream.h")):
            with self.subTest(header):
                self.plant(name, f"#include <{header}>\n")
                self.expect(f"{name}:1:", header, "of CUDA or NCCL")
                (self.copy / name).unlink()
        self.plant("src/comm/nccl/planted.cc", "#include <nccl.h>\n")
        self.assertEqual(self.check().returncode, 0)

    def test_finds_a_relative_include(self):
        for header in ("error.h", "../base/error.h"):
            with self.subTest(header):
                self.plant("src/net/planted.cc", f'#include "{header}"\n')
                self.expect(f'relative include "{header}"')

    def test_finds_a_layer_that_declares_one_it_may_not_use(self):
        self.plant("src/planning/CMakeLists.txt",
                   "find_package(fmt REQUIRED)\n"
                   "lockstep_layer(planning\n  USES base comm\n"
                   "  LIBRARIES fmt::fmt)\n")
        self.expect("src/planning/CMakeLists.txt:2:", "planning links comm")

    def test_finds_a_target_that_links_what_its_layer_may_not(self):
        self.plant("src/net/extra/CMakeLists.txt",
                   "target_link_libraries(probe PRIVATE lockstep::trainer)\n")
        self.expect("src/net/extra/CMakeLists.txt:1:", "net links train")

    def test_finds_a_folder_that_is_no_layer(self):
        self.plant("src/util/planted.cc", "\n")
        self.expect("util/ is not a layer")


if __name__ == "__main__":
    unittest.main()
