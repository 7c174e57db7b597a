"""The run of Horovod and TensorFlow that was recorded once, and that
recorded_golden_main.cc repeats: its weights and data, and the file of its results.

The file has all numbers, as float32, so that no formula exists twice.
"""
import json

import numpy

STEPS = 6
BATCH = 8  # of all workers together
WORKERS = 2
LEARNING_RATE, MOMENTUM = 0.1, 0.9
# Two layers with a tanh between them.
SHAPES = {"first.weight": (4, 3), "first.bias": (4,),
          "second.weight": (2, 4), "second.bias": (2,)}


def wave(shape, phase):
    count = int(numpy.prod(shape))
    numbers = numpy.sin(0.7 * numpy.arange(count) + phase) / 2
    return numbers.astype(numpy.float32).reshape(shape)


def make_inputs():
    inputs = {name: wave(shape, phase)
              for phase, (name, shape) in enumerate(SHAPES.items())}
    inputs["data"] = wave((STEPS * BATCH, 3), 10)
    inputs["targets"] = wave((STEPS * BATCH, 2), 20)
    return inputs


def weights_of(inputs):
    return [inputs[name] for name in SHAPES]


def flat(tensors):
    return numpy.concatenate([numpy.asarray(tensor).reshape(-1)
                              for tensor in tensors])


def as_json(tensor):
    tensor = numpy.asarray(tensor, dtype=numpy.float32)
    return {"shape": list(tensor.shape),
            "values": [float(f"{value:.9g}") for value in tensor.reshape(-1)]}


def write(path, made_by, command, inputs, outputs):
    """`outputs` by case: the workers' tensors after it."""
    document = {
        "made_by": made_by,
        "command": command,
        "steps": STEPS, "batch": BATCH,
        "learning_rate": LEARNING_RATE, "momentum": MOMENTUM,
        "inputs": {name: as_json(value) for name, value in inputs.items()},
        "outputs": {name: as_json(value) for name, value in outputs.items()},
    }
    # One tensor per line.
    lines = []
    for key, value in document.items():
        if key in ("inputs", "outputs"):
            tensors = ",\n".join(f"  {json.dumps(name)}: {json.dumps(tensor)}"
                                 for name, tensor in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{tensors}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
