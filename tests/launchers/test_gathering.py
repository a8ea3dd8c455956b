"""The front gathers the agents of a launch; foreign callers must not delay them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from dataclasses import asdict
from time import monotonic

import pytest

from conformance.launchers import LaunchError
from conformance.launchers.agent import FrontAddress, Hello
from conformance.launchers.front import Front
from conformance.runner.system.protocol import Channel, encode

LIMIT = 60.0
TOKEN = "a secret"


@pytest.fixture
def front():
    front = Front(socket.create_server(("127.0.0.1", 0)), 2, TOKEN)
    yield front
    front.close()


def hello(number, token=TOKEN):
    return encode({"token": token, **asdict(Hello(number, f"host-{number}", "", "127.0.0.1", "lo", {}, {}))})


def call(front, sent):
    connection = socket.create_connection((front.address.host, front.address.port))
    connection.sendall(sent)
    return connection


FOREIGN = [
    *[b"", b'{"number"', b"SSH-2.0\r\n", b"[]\n", b"{}\n", b"[" * 10_000 + b"\n"],
    *[hello(1, token="another"), encode({"token": "another", "failure": "of another launch"})],
]


@pytest.mark.parametrize("sent", FOREIGN)
def test_a_foreign_caller_delays_no_agent(front, sent):
    with call(front, sent), call(front, hello(1)), call(front, hello(0)):
        front.gather(LIMIT)
        assert [agent.name for agent in front.agents] == ["host-0", "host-1"]


def test_a_caller_with_an_endless_line_is_dropped(front):
    with call(front, b"x" * (1 << 17)) as foreign, call(front, hello(1)), call(front, hello(0)):
        front.gather(LIMIT)
        with pytest.raises(TimeoutError):
            front.callers.next(monotonic())
        # The connection may be closed with or without unread bytes.
        with suppress(ConnectionResetError):
            assert foreign.recv(1) == b""


def test_the_oldest_of_many_idle_callers_is_dropped(front):
    with ExitStack() as idle:
        callers = []
        for _ in range(300):
            callers.append(idle.enter_context(call(front, b"")))
            with pytest.raises(TimeoutError):
                front.callers.next(monotonic())
        with call(front, hello(1)), call(front, hello(0)):
            front.gather(LIMIT)
            assert callers[0].recv(1) == b""


def test_the_address_of_a_front_as_text():
    address = FrontAddress("::1", 7, TOKEN)
    assert FrontAddress.parse(str(address)) == address


def test_an_agent_that_fails(front):
    failure = encode({"token": TOKEN, "failure": "host-1: torch cannot be imported"})
    with (
        call(front, b""),
        call(front, failure),
        pytest.raises(LaunchError, match=r"^host-1: torch cannot be imported$"),
    ):
        front.gather(LIMIT)


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_server_s_call_and_its_agent_s_answer_come_in_either_order(front, answers_first):
    with call(front, hello(0)) as agent, call(front, hello(1)):
        front.gather(LIMIT)
        ticket = front.ticket() + 1
        if answers_first:
            agent.sendall(encode({"pid": 7}))
        with call(front, b""), call(front, encode({"token": TOKEN, "ticket": ticket})) as server:
            if not answers_first:
                agent.sendall(encode({"pid": 7}))
            serving = front.agents[0].serve("trainer.py", "ddp", spawn=None, limit=LIMIT)
            assert serving.process.pid == 7
            serving.channel.send({"hello": "there"})
            assert Channel(server).receive() == {"hello": "there"}
            serving.channel.close()
