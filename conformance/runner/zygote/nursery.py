"""The process that the zygotes of several workers are forked from, so that torch is imported once for all of them."""

from __future__ import annotations

import os
import select
import socket
from functools import partial

from conformance.runner.system import linux, processes
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import zygote


def main(connection: str, name: str) -> None:
    """``connection``: the descriptor of this end of a socket, over which comes the one that workers connect to."""
    front = Channel(socket.socket(fileno=int(connection)))
    front.receive()
    (descriptor,) = front.take_descriptors()
    zygote.prepare()
    zygotes: list[int] = []
    with socket.socket(fileno=descriptor) as listener:
        while front.fileno() not in select.select([front.fileno(), descriptor], [], [])[0]:
            worker, _ = listener.accept()
            with worker:
                zygotes.append(processes.fork(partial(_become_zygote, front, listener, worker)))
    for pid in zygotes:
        os.waitpid(pid, 0)


def _become_zygote(front: Channel, listener: socket.socket, worker: socket.socket) -> int:
    front.close()
    listener.close()
    client = Channel(worker)
    # Its own client ends it, so that its servers are ended in good order whatever becomes of this process.
    linux.outlive_parent()
    if (told := client.receive()) is None:
        return 0
    os.environ.clear()
    os.environ.update(told["environment"])
    (output,) = client.take_descriptors()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    zygote.answer(client)
    return 0
