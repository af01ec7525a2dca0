"""What the Python sides of the tests share: how they talk to the Rust side, and how they wait and check."""

import sys
import time

PATIENCE = 60.0


def pattern(seed, length):
    """The bytes that both sides know."""
    return bytes((index * 7 + seed) & 0xFF for index in range(length))


def say(text):
    print(text, flush=True)


def hear():
    return sys.stdin.readline().strip()


def completion(cq):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for found in cq.poll(1):
            found.raise_for_status()
            return found
    raise TimeoutError("no completion")


def check(what, condition):
    if not condition:
        raise AssertionError(what)
