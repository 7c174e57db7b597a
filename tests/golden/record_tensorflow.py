#!/usr/bin/env python3
"""Makes tensorflow.json with TensorFlow itself; tests compare our answers with it.

    pip install tensorflow-cpu==2.21.0
    python3 record_tensorflow.py tensorflow.json

The two workers of MultiWorkerMirroredStrategy are processes that it starts.
"""
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile

import numpy
import tensorflow as tf
from recorded_run import (BATCH, LEARNING_RATE, MOMENTUM, STEPS, WORKERS, flat,
                          make_inputs, weights_of, write)

INPUTS = make_inputs()
# Samples of a global batch by replica: equal and unequal shares.
SHARES = {"": (4, 4), ", unequal shares": (5, 3)}


def share_of(name, step, replica, shares):
    first = step * BATCH + sum(shares[:replica])
    return tf.constant(INPUTS[name][first:first + shares[replica]])


def losses_of(variables, data, targets):
    first, first_bias, second, second_bias = variables
    hidden = tf.tanh(tf.matmul(data, first, transpose_b=True) + first_bias)
    output = tf.matmul(hidden, second, transpose_b=True) + second_bias
    return tf.reduce_sum(tf.square(output - targets), axis=1)


def train(strategy, shares):
    """The weights after all steps, and each step's loss."""
    with strategy.scope():
        variables = [tf.Variable(value) for value in weights_of(INPUTS)]
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(variables)

    def replica_step(data, targets):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(
                losses_of(variables, data, targets), global_batch_size=BATCH)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    @tf.function(reduce_retracing=True)
    def run(data, targets):
        return strategy.run(replica_step, args=(data, targets))

    totals = []
    for step in range(STEPS):
        data, targets = (
            strategy.experimental_distribute_values_from_function(
                lambda here, name=name: share_of(
                    name, step, here.replica_id_in_sync_group, shares))
            for name in ("data", "targets"))
        totals.append(strategy.reduce("SUM", run(data, targets), axis=None))
    return (flat([variable.numpy() for variable in variables]),
            numpy.array([total.numpy() for total in totals]))


def add(found, name, strategy):
    for how, shares in SHARES.items():
        weights, losses = train(strategy, shares)
        found[f"{name}{how}"] = weights
        found[f"{name}{how}, losses"] = losses


def add_reductions(found, strategy):
    values = strategy.run(lambda: tf.constant([1.0, 10.0]) * (1.0 + tf.cast(
        tf.distribute.get_replica_context().replica_id_in_sync_group,
        tf.float32)))
    for how in ("SUM", "MEAN"):
        found[f"reduce, {how.lower()}"] = strategy.reduce(how, values,
                                                          axis=None).numpy()


def work(path):
    """One worker, which TF_CONFIG names. The first worker writes its results."""
    found = {}
    add(found, "multi-worker", tf.distribute.MultiWorkerMirroredStrategy())
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        numpy.savez(path, **found)


def run_workers():
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/found.npz"
        workers = []
        for index in range(WORKERS):
            config = json.dumps({"cluster": {"worker": addresses},
                                 "task": {"type": "worker", "index": index}})
            workers.append(subprocess.Popen(
                [sys.executable, __file__, "worker", path],
                env={**os.environ, "TF_CONFIG": config}))
        for worker in workers:
            assert worker.wait(timeout=300) == 0
        with numpy.load(path) as found:
            return dict(found)


def main():
    if sys.argv[1] == "worker":
        return work(sys.argv[2])
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * WORKERS)
    slots = [f"CPU:{index}" for index in range(WORKERS)]
    found = {}
    mirrored = tf.distribute.MirroredStrategy(slots)
    add(found, "mirrored", mirrored)
    add_reductions(found, mirrored)
    add(found, "central",
        tf.distribute.experimental.CentralStorageStrategy(slots))
    found |= run_workers()
    made_by = f"TensorFlow {tf.__version__}, Python {platform.python_version()}"
    return write(sys.argv[1], made_by,
                 "python3 record_tensorflow.py tensorflow.json", INPUTS, found)


main()
