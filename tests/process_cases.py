"""A port for the processes of a run on this machine."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port of this machine on which no process listens.

    It lies below the ports that Linux gives to clients, one of which could take it meanwhile.
    """
    while True:
        port = random.SystemRandom().randint(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
