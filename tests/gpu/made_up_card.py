"""A bundle of gpu_bundle on a simulated machine: programs that answer as the real
ones do replace nvidia-smi, PyTorch, the launcher and the tests."""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts"

# The launcher: its ranks run one after the other.
LOCKSTEP = """
case $1 in
  doctor) cat "$STUBS/doctor" ;;
  run)
    ranks=$3 status=0
    while [ "$1" != -- ]; do shift; done; shift
    for ((r = 0; r < ranks; ++r)); do
      RANK=$r "$@" 2>&1 | sed "s/^/[rank $r] /"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
    done
    exit $status ;;
  train) source "$STUBS/train" ;;
  evaluate) source "$STUBS/evaluate" ;;
  predict) source "$STUBS/predict" ;;
  *) echo "$@" ;;
esac
"""
TESTS = """
echo "[ RUN      ] Cuda.Adds"
echo "shared $LOCKSTEP_SHARE_GPUS, $1, $LOCKSTEP_TEST_GPUS"
[ ! -e "$STUBS/tests" ] || source "$STUBS/tests"
echo "[       OK ] Cuda.Adds (3 ms)"
echo "[  PASSED  ] 1 test."
"""
# Runs our simulated programs, or the real python3.
PYTHON = """
case "$*" in
  *compare.py*) source "$STUBS/compare" ;;
  *benchmarks/gpu*) source "$STUBS/benchmark" ;;
  *) exec {python} "$@" ;;
esac
"""
TORCH = """
import types
__version__ = "2.11.0"
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(
    is_available=lambda: {available}, get_device_name=lambda _: "H200",
    nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)))
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 1))
class Tensor:
    def __init__(self, value): self.value = value
    def __matmul__(self, other): return self
    def __getitem__(self, _): return self
    def sum(self): return Tensor(256**3)
    def item(self): return self.value
def ones(*_, device): return Tensor(1.0)
"""
DISTRIBUTED = """
import os
def init_process_group(backend):
    assert os.environ["NCCL_HOSTID"] == os.environ["RANK"]
def all_reduce(tensor): tensor.value = {total}
def get_rank(): return int(os.environ["RANK"])
def destroy_process_group(): pass
"""
SKIPPED = """
echo "cuda_test.cc:1: Skipped"
echo "{reason}"
echo
echo "[  SKIPPED ] Cuda.Skips (0 ms)"
"""


class MadeUpCard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bundle, self.out = self.folder / "bundle", self.folder / "out"
        self.stubs = self.folder / "stubs"
        self.stubs.mkdir()
        (self.bundle / "benchmarks").mkdir(parents=True)
        shutil.copytree(SCRIPTS / "gpu", self.bundle / "gpu",
                        ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SCRIPTS / "gpu_check", self.bundle)
        self.write_programs()
        self.write_torch()

    def program(self, path, body):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def stub(self, name, body):
        (self.stubs / name).write_text(body + "\n", encoding="utf-8")

    def write_programs(self):
        binaries = self.bundle / "lockstep/bin"
        self.program(binaries / "lockstep", LOCKSTEP)
        for name in ("lockstep_comm_test", "lockstep_plugin_nccl_test",
                     "lockstep_torch_test", "lockstep_evaluate_test",
                     "lockstep_trainer_test"):
            self.program(binaries / name, TESTS)
        self.program(binaries / "lockstep_comm_ranks",
                     'echo "$1: 120 cases, ${WRONG:-0} wrong"')
        self.program(binaries / "lockstep_fault_on_gpu",
                     'source "$STUBS/$2"')
        (self.bundle / "lockstep/commit").write_text("0123456789abcdef\n")
        self.program(self.folder / "path/python3",
                     PYTHON.format(python=sys.executable))
        self.card()
        self.stub("doctor", "  ok  backend nccl     between GPUs")
        self.stub("train", 'echo "$@"; echo "trained in 1 s · test accuracy 97.0 %"')
        self.stub("evaluate", """echo '{"accuracy": 0.97, "classes": """
                  """[{"name": "cross"}, {"name": "ring"}]}'""")
        self.stub("predict", """echo index,path,predicted
                  for i in {1..97}; do echo $i,val/ring/$i.jpg,1; done
                  for i in {98..100}; do echo $i,val/cross/$i.jpg,1; done""")
        self.stub("compare", 'echo \'RESULT {"what": "gradients", "ours": 1e-7, '
                  '"limit": 1e-4, "met": true}\'')
        self.stub("benchmark", 'echo "[]" >"$LOCKSTEP_RESULTS/gpu.json"')

    def card(self, body='echo "NVIDIA H200, 580.1"'):
        self.program(self.folder / "path/nvidia-smi", body)

    def no_card(self):
        (self.folder / "path/nvidia-smi").unlink()

    def write_torch(self, available=True, total=2.0):
        folder = self.folder / "python/torch/distributed"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "__init__.py").write_text(
            TORCH.format(available=available))
        (folder / "__init__.py").write_text(DISTRIBUTED.format(total=total))

    def check(self, *arguments, **variables):
        environment = {
            **os.environ, "PATH": f"{self.folder / 'path'}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "python"), "STUBS": str(self.stubs),
            "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return subprocess.run(
            [sys.executable, self.bundle / "gpu_check", *arguments],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=200)

    def run_stage(self, stage, *parts, status=0, options=(), **variables):
        """The parts by name, after a run with this exit status."""
        result = self.check(*options, self.out, stage, *parts, **variables)
        self.assertEqual(result.returncode, status,
                         result.stdout + result.stderr)
        self.said = result.stdout
        document = json.loads((self.out / f"{stage}.json").read_text())
        return {part["name"]: part for part in document["parts"]}

    def log(self, stage, part):
        with tarfile.open(self.out / f"{stage}.tar.gz") as archive:
            name = f"{stage}-logs/{Path(part['log']).name}"
            return archive.extractfile(name).read().decode()

    def assert_failed(self, part, reason, layer=None):
        self.assertTrue(part["failed"], part)
        self.assertRegex(part["reason"], reason)
        if layer:
            self.assertEqual(part["layer"], layer)
