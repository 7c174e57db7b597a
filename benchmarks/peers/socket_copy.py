"""One of two ranks that do nothing but send each other bytes, both at once: what
the link between their hosts carries.

    socket_copy.py REQUESTS     with the environment of torchrun

Answers "wire - BYTES SECONDS ROUNDS" as ../collective_answers.h has it.
"""
import json
import os
import random
import socket
import statistics
import sys
import threading
import time

RANK = int(os.environ["RANK"])
ADDRESS = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connect():
    if RANK == 0:
        with socket.create_server(ADDRESS) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(ADDRESS)
        except ConnectionRefusedError:
            time.sleep(0.05)


def receive(link, room):
    got = 0
    while got < len(room):
        count = link.recv_into(room[got:])
        if count == 0:
            raise RuntimeError("the other rank has gone")
        got += count


def exchange(link, data, room):
    """Seconds until what the other sent is here, and ours is on its way."""
    token = memoryview(bytearray(1))
    link.sendall(b"!")
    receive(link, token)
    begin = time.perf_counter()
    sender = threading.Thread(target=link.sendall, args=(data,))
    sender.start()
    receive(link, room)
    sender.join()
    return time.perf_counter() - begin


def measure(link, question):
    _, _, size, _, rounds = question.split()
    # The same on both ranks, and another in every round.
    generator = random.Random(0)
    room = memoryview(bytearray(int(size)))
    times = []
    for _ in range(1 + int(rounds)):
        data = generator.randbytes(int(size))
        times.append(exchange(link, data, room))
        if room != data:
            raise RuntimeError("what came is not what was sent")
    return {"median_us": statistics.median(times[1:]) * 1e6}


def main():
    with connect() as link, open(f"{sys.argv[1]}.{RANK}") as requests:
        for question in iter(requests.readline, ""):
            answer = measure(link, question)
            if RANK == 0:
                print(json.dumps(answer), flush=True)


main()
