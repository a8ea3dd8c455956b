"""Messages are lines of strict JSON, with descriptors, and may arrive in any pieces."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.runner.system.protocol import Channel, Lines, decode, encode, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.fixture
def ends():
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


@given(st.dictionaries(st.text(), VALUES))
def test_plain_values_arrive_as_they_were(message):
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(
    st.lists(st.dictionaries(st.text(), VALUES)), st.dictionaries(st.text().filter("many".__ne__), VALUES, min_size=1)
)
def test_messages_within_a_message_are_unchanged(messages, others):
    lines = Lines([to_json(message) for message in messages])
    assert list(lines) == messages
    assert list(lines[1:]) == messages[1:]
    assert json.loads(lines.within(others, "many")) == {"many": messages, **others}


def test_non_finite_floats_are_text():
    message = {"weights": [1.0, float("nan"), [float("inf")]], "scale": float("-inf")}
    assert json.loads(encode(message)) == {"weights": [1.0, "nan", ["inf"]], "scale": "-inf"}


def test_messages_that_arrive_together_are_separated(ends):
    left, right = ends
    left.send({"n": 1})
    left.send({"n": 2})
    assert right.receive() == {"n": 1}
    assert right.receive() == {"n": 2}


def test_a_message_larger_than_the_socket_holds(ends):
    left, right = ends
    message = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=left.send, args=[message])
    sender.start()
    assert right.receive() == message
    sender.join()


def test_descriptors_travel_with_a_message(ends):
    left, right = ends
    read, write = os.pipe()
    left.send({"here": "it is"}, [write])
    os.close(write)
    assert right.receive() == {"here": "it is"}
    (received,) = right.take_descriptors()
    assert not os.get_inheritable(received)
    os.write(received, b"through")
    assert os.read(read, 7) == b"through"
    os.close(received)
    os.close(read)


def test_the_other_end_has_disconnected(ends):
    left, right = ends
    left.close()
    assert right.receive() is None


def test_nothing_comes(ends):
    with pytest.raises(TimeoutError):
        ends[0].receive(timeout=0.01)


def test_a_connection_lost_by_keepalive_has_disconnected():
    class Lost(socket.socket):
        def recvmsg(self, *_):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    left, right = socket.socketpair()
    with right, Lost(fileno=left.detach()) as lost:
        right.send(b"x")
        assert Channel(lost).receive(timeout=60.0) is None


def test_a_check_for_a_disconnect_keeps_the_socket_blocking(ends):
    """Another thread, or a forked process, may be sending over the same socket."""
    left, right = ends
    assert not left.hung_up
    with pytest.raises(TimeoutError):
        left.receive(timeout=0.01)
    assert os.get_blocking(left.fileno())
    right.close()
    assert left.hung_up
