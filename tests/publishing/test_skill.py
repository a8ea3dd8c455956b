"""SKILL.md: its commands, run in their order on a change that is wrong, end as the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .jobs import ROOT, run

RIGHT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.randn(32, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
#: The commands that find the change out.
FAIL = ("watch", "smoke", "run conform_train.py --output build/after", "diff", "run conform_train.py --case")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A repository with a correct last commit and a wrong working tree."""
    (tmp_path / "train.py").write_text(RIGHT)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "Train")):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "train.py").write_text(RIGHT.replace("    optimizer.zero_grad()\n", ""))
    return tmp_path


def test_its_commands_find_a_wrong_change(changed: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "SKILL.md").read_text(), re.MULTILINE | re.DOTALL)
    names = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for line in "".join(blocks).splitlines():
        ran = run(line, changed, **names)
        wrong = line.removeprefix("conformance ").startswith(FAIL)
        assert ran.returncode == int(wrong), f"{line}\n{ran.stdout}{ran.stderr}"
    assert "acc/cleared-between-windows" in (changed / "build/after/conformance-results.jsonl").read_text()
    assert (changed / "repro-single-batched-fp32-momentum.py").exists()


def test_it_is_one_page_that_an_agent_can_find() -> None:
    head, text = re.fullmatch(r"---\n(.*?)\n---\n(.*)", (ROOT / "SKILL.md").read_text(), re.DOTALL).groups()
    assert re.fullmatch(r"name: [a-z-]{1,64}\ndescription: .{1,1024}", head)
    assert len(text.split()) < 600
