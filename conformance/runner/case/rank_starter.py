"""The two ways in which a newly forked process becomes a rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Protocol

from conformance.adapter.loading import Train
from conformance.runner.rank import rank
from conformance.runner.system import interpreter
from conformance.runner.system.descriptors import nameless_file


class RankStarter(Protocol):
    """Becomes the rank, and returns its exit code if it returns at all."""

    def __call__(self, spec: dict[str, Any], number: int, pipes: rank.Pipes, environment: Mapping[str, str]) -> int: ...


def forked(train: Train) -> RankStarter:
    """Continue with what the server has imported."""

    def become_rank(spec: dict[str, Any], number: int, pipes: rank.Pipes, environment: Mapping[str, str]) -> int:
        os.environ.update(environment)
        return rank.run(lambda: train, spec, number, pipes)

    return become_rank


def spawned(target: str, backend: str) -> RankStarter:
    """Start over in a fresh interpreter, which imports everything itself."""

    def become_rank(spec: dict[str, Any], number: int, pipes: rank.Pipes, environment: Mapping[str, str]) -> int:
        job = nameless_file()
        os.write(job, rank.spawn_job(backend, spec, number, pipes).encode())
        os.lseek(job, 0, os.SEEK_SET)
        for descriptor in (job, *astuple(pipes)):
            os.set_inheritable(descriptor, True)
        command = interpreter.command("conformance.runner.rank.rank", str(job), target)
        os.execve(sys.executable, command, {**os.environ, **environment})

    return become_rank
