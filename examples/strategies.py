"""strategies.cc in TensorFlow, for TensorFlow users: the same network, data,
batches and rates.

    python3 strategies.py                    two slots of the CPU, mirrored

TensorFlow draws other initial weights and another order, so losses agree only
about as well as those of two seeds.
"""
import gzip
import os

import numpy
import tensorflow as tf

FOLDER = "/usr/share/datasets/fashion-mnist"  # of Debian's package
GLOBAL_BATCH = 128


def read_idx(name, header_bytes):
    with gzip.open(os.path.join(FOLDER, name)) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes)


def load_fashion_mnist():
    pixels = read_idx("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read_idx("train-labels-idx1-ubyte.gz", 8).astype(numpy.int64)
    images = (pixels.astype(numpy.float32) / 255 - 0.2860) / 0.3530
    return tf.data.Dataset.from_tensor_slices((images, labels))


# PyTorch's and LibTorch's initial weights.
def dense(inputs, outputs, activation=None):
    bound = inputs ** -0.5
    initial = tf.keras.initializers.RandomUniform(-bound, bound)
    return tf.keras.layers.Dense(outputs, activation=activation,
                                 kernel_initializer=initial,
                                 bias_initializer=initial)


def train(strategy, data):
    with strategy.scope():
        net = tf.keras.Sequential([tf.keras.layers.Flatten(),
                                   dense(784, 128, "relu"), dense(128, 10)])
        net.build((None, 28, 28))
        optimizer = tf.keras.optimizers.SGD(0.1)
    losses_of = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none")
    shuffled = data.shuffle(60000, seed=0)
    batches = strategy.experimental_distribute_dataset(
        shuffled.batch(GLOBAL_BATCH))

    def step(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(losses_of(labels, net(images)),
                                              global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables))
        return loss

    @tf.function
    def run(batch):
        losses = strategy.run(step, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    all_losses = [run(batch).numpy() for batch in batches]
    return sum(all_losses) / len(all_losses)


def main():
    tf.random.set_seed(0)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2)
    data = load_fashion_mnist()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(f"mirrored: mean loss {train(mirrored, data):.3f}")
    central = tf.distribute.experimental.CentralStorageStrategy(
        ["CPU:0", "CPU:1"])
    print(f"central: mean loss {train(central, data):.3f}")


if __name__ == "__main__":
    main()
