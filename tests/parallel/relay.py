"""A cable between network namespaces: what enters at one interface leaves at all others, after a delay.

    python relay.py SECONDS PORT,HOST ...

PORT and HOST are the two ends of a veth pair. The program turns checksum offload off at both, says "ready", and then relays between the
ports. A frame that meets a port that is down is lost.
"""

import ctypes
import errno
import fcntl
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

ALL_PROTOCOLS = 3
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
BUFFER = 2**23
"""Bytes of frames that a port may hold until they are read."""


def disable_checksum_offload(interface: str) -> None:
    """Make the kernel compute checksums and split segments before frames enter the interface, as they leave the relay unchanged."""
    value = (ctypes.c_uint32 * 2)(ETHTOOL_STXCSUM, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def open_port(interface: str) -> socket.socket:
    """Open an interface for raw frames."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    port.bind((interface, 0))
    return port


def receive(port: socket.socket) -> bytes | None:
    """Return a frame that came in at a port; None if it went out there, or if the port has gone down."""
    try:
        frame, address = port.recvfrom(2**16)
    except OSError as error:
        if error.errno != errno.ENETDOWN:
            raise
        return None
    return None if address[2] == socket.PACKET_OUTGOING else frame


def send(port: socket.socket, frame: bytes) -> None:
    """Send a frame; it is lost if the port is down."""
    try:
        port.send(frame)
    except OSError as error:
        if error.errno != errno.ENETDOWN:
            raise


def relay(ports: Sequence[socket.socket], seconds: float) -> None:
    """Relay frames forever, each ``seconds`` after it came."""
    waiting = deque[tuple[float, socket.socket, bytes]]()
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, (), (), rest)[0]:
            if (frame := receive(port)) is not None:
                waiting.append((time.monotonic() + seconds, port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, source, frame = waiting.popleft()
            for port in ports:
                if port is not source:
                    send(port, frame)


if __name__ == "__main__":
    pairs = [each.split(",") for each in sys.argv[2:]]
    for interface in (each for pair in pairs for each in pair):
        disable_checksum_offload(interface)
    opened = [open_port(port) for port, _ in pairs]
    print("ready", flush=True)
    relay(opened, float(sys.argv[1]))
