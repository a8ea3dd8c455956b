"""The case as a test of torch's own kind: MultiProcessTestCase spawns new ranks for each test."""

from __future__ import annotations

import os

import bare_case
from torch.testing._internal.common_distributed import MultiProcessTestCase

JOB = "BENCHMARK_JOB"


class BareTestCase(MultiProcessTestCase):
    """One test. The ranks get their job's file from the environment, because a test has no arguments."""

    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_case(self) -> None:
        bare_case.run(self.rank, os.environ[JOB], self.file_name)
