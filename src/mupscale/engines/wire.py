"""Messages on a pipe: eight bytes with the length, then the message."""

import struct
from typing import BinaryIO

_LENGTH = struct.Struct(">Q")


def framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def read_message(pipe: BinaryIO) -> bytes | None:
    """Wait for the next message; None if the other side has closed the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None


def take_message_(received: bytearray) -> bytes | None:
    """Remove the first message from the bytes received so far; None while it is incomplete.

    >>> received = bytearray(framed(b"one") + framed(b"two")[:-1])
    >>> take_message_(received), take_message_(received)
    (b'one', None)
    """
    if len(received) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return None
    message = bytes(memoryview(received)[_LENGTH.size : end])
    del received[:end]
    return message
