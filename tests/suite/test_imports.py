"""A trainer's modules are imported once per run, for any number of processes and backends."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = ["--case", "single-batched-fp32-momentum", "--case", "ddp-w2-fp32-momentum"]


@pytest.mark.parametrize(("then", "code"), [("", 0), ("raise ValueError('bad day')", 2)])
def test_an_import(command, write, then, code):
    """Whether it succeeds or fails, once for all trainers of a file."""
    target = Path(write())
    source = target.read_text()
    another = source[source.index("@trainer") :].replace("def train(", "def another(")
    target.write_text(f"{source}\n{another}\nopen('imports', 'a').write('imported\\n')\n{then}")
    ended = command("run", f"{target}:train", f"{target}:another", *CASES, "-n", "2").ended()
    assert ended.code == code, ended.err
    assert Path("imports").read_text() == "imported\n"
