"""A port for the processes of a run on this machine."""

import socket


def free_port() -> int:
    """Return a port of this machine on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
