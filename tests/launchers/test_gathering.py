"""Who connects while the processes of a launch are gathered: agents, and others who must not hold them up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from conformance.launchers import LaunchError
from conformance.launchers.agent import Hello
from conformance.launchers.front import Front
from conformance.runner.system.protocol import Channel, encode

LIMIT = 60.0


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front(socket.create_server(("127.0.0.1", 0)), 2)
    yield front
    front.close()


def hello(number: int) -> bytes:
    return encode(asdict(Hello(number, f"host-{number}", "", "127.0.0.1", "lo", {}, {})))


def call(front: Front, sent: bytes) -> socket.socket:
    connection = socket.create_connection(front.address)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("sent", [b"", b'{"number"', b"SSH-2.0\r\n", b"[]\n", b"{}\n"])
def test_a_caller_that_is_no_agent_keeps_no_agent_waiting(front: Front, sent: bytes) -> None:
    with call(front, sent), call(front, hello(1)), call(front, hello(0)):
        front.gather(LIMIT)
        assert [agent.name for agent in front.agents] == ["host-0", "host-1"]


def test_what_keeps_an_agent_away(front: Front) -> None:
    failure = encode({"failure": "host-1: torch cannot be imported"})
    with (
        call(front, b""),
        call(front, failure),
        pytest.raises(LaunchError, match=r"^host-1: torch cannot be imported$"),
    ):
        front.gather(LIMIT)


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_server_s_call_and_its_agent_s_answer_come_in_either_order(front: Front, answers_first: bool) -> None:
    with call(front, hello(0)) as agent, call(front, hello(1)):
        front.gather(LIMIT)
        ticket = front.ticket() + 1
        if answers_first:
            agent.sendall(encode({"pid": 7}))
        with call(front, b""), call(front, encode({"ticket": ticket})) as server:
            if not answers_first:
                agent.sendall(encode({"pid": 7}))
            process = front.agents[0].serve("trainer.py", "ddp", spawn=None)
            assert process.pid == 7
            process.channel.send({"hello": "there"})
            assert Channel(server).receive() == {"hello": "there"}
            process.channel.close()
