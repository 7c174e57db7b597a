"""The parts of each stage of gpu_check."""
from pathlib import Path

from parts import Part

# To NCCL, ranks that share the one card are separate hosts, which communicate
# through sockets; other algorithms are not faster there. A hang becomes an error
# after LOCKSTEP_TIMEOUT seconds.
SHARED = {"LOCKSTEP_SHARE_GPUS": "1", "NCCL_ALGO": "Ring",
          "NCCL_PROTO": "Simple", "NCCL_SOCKET_IFNAME": "lo",
          "LOCKSTEP_TIMEOUT": "15"}
MOST_RANKS = 4

# One epoch gives some 70 %, chance 10 %.
LEARNED = r"test accuracy ([5-9]\d|100)\."

# Reasons for which tests may be skipped on a machine with one card: they test the
# fake itself, need several cards or no card, or more ranks than this part has.
ONE_CARD = (r"only the fake .*", r"a real device has enough",
            r"a machine may have one GPU alone", r"there is one GPU",
            r"there (is a GPU|are ([0-9]+ )?GPUs)",
            r"for [0-9]+ GPUs, of which there are 1")

COMM_TESTS = "lockstep_comm_test"
TORCH_TESTS, EVALUATE_TESTS, TRAINER_TESTS = (
    "lockstep_torch_test", "lockstep_evaluate_test", "lockstep_trainer_test")
# Tests below LibTorch use a fake without it.
REAL = {"LOCKSTEP_TEST_GPUS": "real"}
# The tests of CudaRanks; above LibTorch only.
ONE_RANK_TESTS = "*Cuda*-FakeCuda*"
# All of its tests compare 1, 2 and 4 ranks.
NEEDS_MOST_RANKS = "TreeReduction"
# The suites whose ranks reduce, the most informative failures first.
SUITES = (
    ("Nccl", COMM_TESTS, "Nccl.*:NcclMemory.*"),
    ("Cuda", TORCH_TESTS, "Cuda.*:*/CudaWorld.*"),
    ("CapturedPass", TORCH_TESTS, "CapturedPassOnCuda.*"),
    ("TrainingOnCuda", TORCH_TESTS, "TrainingOnCuda.*"),
    ("ShardHook", TORCH_TESTS, "ShardHookOnCuda.*"),
    (NEEDS_MOST_RANKS, TORCH_TESTS, "TreeReductionOnCuda.*:LogicalShardsOnCuda.*"),
    ("TrainerOnCuda", TRAINER_TESTS, "TrainerOnCuda.*"),
    ("Strategies", TORCH_TESTS, "StrategiesOnCuda.*"),
    ("Evaluation", EVALUATE_TESTS, "EvaluationOnCuda.*"),
    ("OutOfMemory", TORCH_TESTS, "OutOfMemoryOnCuda.*"),
)


class Bundle:
    """The paths in the bundle, and the command lines."""

    def __init__(self, folder, card, libraries):
        # What is not ours is to load nothing of ours.
        self.plain = {"LD_LIBRARY_PATH": libraries}
        self.bin = folder / "bin"
        self.data = folder / "data"
        self.programs = Path(__file__).resolve().parent
        self.benchmarks = self.programs.parent / "benchmarks"
        self.device = "cuda" if card else "cpu"

    def python(self, name, *arguments):
        return ["python3", "-u", self.programs / name, *arguments]

    def run(self, ranks, *command):
        return ["lockstep", "run", "-n", ranks, "--bind", "none", "--",
                *command]

    def train(self, *arguments):
        return ["lockstep", "train", *self.train_flags(*arguments)]

    def train_flags(self, *arguments):
        return ["--device", self.device, "--bind", "none", "--model", "cnn",
                "--data-dir", self.data, *arguments]


def more_ranks_than(ranks):
    """A skip that a part of MOST_RANKS covers; there is none for more ranks."""
    wanting = "|".join(map(str, range(ranks + 1, MOST_RANKS + 1)))
    return rf"for ({wanting}) ranks, of which there are {ranks}"


def tests_part(bundle, name, program, tests, ranks, seconds):
    return Part(f"{name}, {ranks} rank{'s' if ranks > 1 else ''}", "Lockstep",
                seconds, bundle.run(ranks, bundle.bin / program,
                                    f"--gtest_filter={tests}"),
                {**REAL, **(SHARED if ranks > 1 else {})},
                may_skip=(*ONE_CARD, more_ranks_than(ranks)))


def conformance_part(bundle, ranks):
    """Every kind of collective through the plug-in, in registered and plain memory."""
    return Part(f"conformance, {ranks} rank{'s' if ranks > 1 else ''}", "Lockstep",
                150, bundle.run(ranks, bundle.bin / "lockstep_comm_ranks",
                                "conformance_on_gpus"),
                SHARED if ranks > 1 else {}, expects=r"[1-9]\d* cases, 0 wrong")


def image_folder_part(bundle, ranks):
    return Part(f"a folder of images, {ranks} rank{'s' if ranks > 1 else ''}",
                "Lockstep", 150, bundle.python("image_folder.py", ranks, bundle.device),
                SHARED if ranks > 1 else {}, without_card=True)


def smoke(bundle):
    yield Part("machine", "machine", 20, [
        "sh", "-c", "uname -a; nproc; free -m; df -h /tmp; ip a || true"],
        without_card=True)
    yield Part("nvidia-smi", "driver", 30, ["nvidia-smi"], bundle.plain)
    yield Part("PyTorch", "PyTorch", 90,
               bundle.python("torch_pair.py", "versions"), bundle.plain)
    yield Part("two ranks of PyTorch share the card", "PyTorch", 110,
               bundle.python("torch_pair.py", "pair", bundle.device),
               {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
                "NCCL_DEBUG": "WARN", **bundle.plain}, without_card=True)
    yield Part("lockstep doctor", "Lockstep", 60, ["lockstep", "doctor"],
               without_card=True, expects=r"^  ok  backend shm"
               if bundle.device == "cpu" else r"^  ok  backend nccl")
    yield Part("the plug-in", "plug-in", 60, [
        bundle.bin / "lockstep_plugin_nccl_test",
        "--gtest_filter=NcclPluginOnGpu.*"])
    yield conformance_part(bundle, 1)
    for program in (TORCH_TESTS, EVALUATE_TESTS, TRAINER_TESTS):
        yield tests_part(bundle, program, program, ONE_RANK_TESTS, 1, 120)
    model = "model.safetensors"
    yield Part("lockstep train", "Lockstep", 60, bundle.train(
        "-n", 1, "--epochs", 1, "--output", model), without_card=True,
        expects=LEARNED)
    yield Part("lockstep evaluate", "Lockstep", 40, [
        "lockstep", "evaluate", model, "--device", bundle.device, "--data-dir",
        bundle.data, "--json", "-"], without_card=True,
        expects=r'"accuracy": (0\.[5-9]|1)')
    yield image_folder_part(bundle, 1)


def ranks(bundle):
    yield conformance_part(bundle, 2)
    for name, program, tests in SUITES:
        if name == NEEDS_MOST_RANKS:
            continue
        yield tests_part(bundle, name, program, tests, 2, 120)
    # Before more suites, because users run these first.
    yield Part("lockstep train, 2 ranks", "Lockstep", 60, bundle.train(
        "-n", 2, "--epochs", 1), SHARED, without_card=True, expects=LEARNED)
    yield Part("lockstep train --cuda-graph, 2 ranks", "Lockstep", 60,
               bundle.train("-n", 2, "--epochs", 1, "--cuda-graph"), SHARED,
               expects=LEARNED)
    yield image_folder_part(bundle, 2)
    yield Part("kill -9 of a rank in training", "Lockstep", 160,
               bundle.python("kill_rank.py", 2, *bundle.train_flags()), SHARED,
               without_card=True)
    yield conformance_part(bundle, MOST_RANKS)
    for name, program, tests in SUITES:
        yield tests_part(bundle, name, program, tests, MOST_RANKS, 120)


def compare(bundle):
    steps = 50 if bundle.device == "cuda" else 10
    for precision in ("float32", "bfloat16"):
        for model in ("cnn", "resnet18", "mlp"):
            yield Part(f"{model}, {precision}", "Lockstep", 220, bundle.python(
                "compare.py", bundle.bin / "lockstep_compare_rank",
                bundle.device, model, precision, 2, steps),
                # The card whose memory it watches has all ranks of both sides.
                {**SHARED, "CUDA_VISIBLE_DEVICES": "0"}, without_card=True)


def speed(bundle):
    for count in (1, 2):
        yield Part(f"lockstep bench all_reduce, {count} rank(s)", "Lockstep", 60,
                   ["lockstep", "bench", "all_reduce", "-n", count, "--device",
                    bundle.device, "--bytes", "4..64M", "--step-factor", 16],
                   SHARED if count > 1 else {}, without_card=True)
    yield Part("./dev bench gpu", "Lockstep", 460, [
        "python3", bundle.benchmarks / "gpu"])


def faults(bundle):
    for kind in ("hang", "death", "mismatch", "memory", "capture"):
        yield Part(kind, "Lockstep", 105, bundle.python(
            "fault.py", bundle.bin / "lockstep_fault_on_gpu", bundle.device,
            kind), SHARED, without_card=True)


STAGES = {"smoke": smoke, "ranks": ranks, "compare": compare, "speed": speed,
          "faults": faults}
