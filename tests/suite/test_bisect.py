"""`conformance bisect`: the first release, and the first commit, that fails a case."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cli.bisect import CannotBisect, candidates, search

#: A framework whose releases differ in whether they divide the loss. 1.1 cannot be installed.
STEPS = {"1.0": "loss / n", "1.1": "", "1.2": "loss", "1.3": "loss"}
TRAINER = """
from toyframework import mean
from conformance import Task, trainer

@trainer(precisions=["fp32"], clips=[])
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    for window in task.windows():
        for batch in window:
            mean(task.loss(model(batch.inputs), batch), len(window)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""
#: By name, the text of what a wheel has besides its module.
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: toyframework\nVersion: {version}\nRequires-Dist: {needs}\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}
#: Returns the wheel next to it, and needs nothing installed.
BACKEND = """
import shutil

def build_wheel(folder, settings=None, metadata=None):
    shutil.copy("toyframework-1.0-py3-none-any.whl", folder)
    return "toyframework-1.0-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def release(folder: Path, version: str, module: str, needs: str = "torch") -> None:
    with zipfile.ZipFile(folder / f"toyframework-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toyframework.py", module)
        for name, text in METADATA.items():
            wheel.writestr(f"toyframework-{version}.dist-info/{name}", text.format(version=version, needs=needs))


@given(st.lists(st.sampled_from([True, None])), st.lists(st.sampled_from([False, None])))
def test_the_search_finds_the_first_that_fails(right, wrong):
    """And names those before it that cannot be judged."""
    verdicts = [True, *right, *wrong, False]
    first, skipped = search(range(len(verdicts)), verdicts.__getitem__)
    assert verdicts[first] is False
    assert all(verdicts[number] is None for number in skipped)
    assert verdicts[first - len(skipped) - 1] is True
    assert False not in verdicts[:first]


def test_the_search_tries_few():
    tried = []
    assert search(range(1000), lambda number: tried.append(number) or number < 700) == (700, range(700, 700))
    assert len(tried) == 10


@pytest.fixture
def index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the releases, which is all that pip looks into."""
    for version, step in STEPS.items():
        release(folder, version, f"def mean(loss, n):\n    return {step}\n", needs="torch" if step else "nothing-such")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_first_release_that_fails_is_named(index, conformance):
    (index / "mine.py").write_text(TRAINER)
    ends = ("--good", "toyframework==1.0", "--bad", "toyframework==1.2")
    ended = conformance("bisect", *ends, "--", "single-acc2-fp32-momentum", "mine.py")
    assert ended.code == 0, ended.out + ended.err
    assert "✓ toyframework==1.0  PASS (exact)\n" in ended.out
    assert "≠ toyframework==1.2  FAIL (numerics)\n" in ended.out
    assert "First that fails: toyframework==1.2\n" in ended.out
    assert "which were skipped: toyframework==1.1\n" in ended.out


def test_commits_are_installed_in_their_order(tmp_path, monkeypatch):
    """Each from a clone; the last one is where the branch is."""
    repository, folder = tmp_path / "framework", tmp_path / "folder"
    folder.mkdir()
    git = ("git", "-C", str(repository), "-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", repository], check=True)
    (repository / "pyproject.toml").write_text(PROJECT)
    (repository / "backend.py").write_text(BACKEND)
    for number in range(3):
        release(repository, "1.0", f"NUMBER = {number}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", str(number)], check=True)
        subprocess.run([*git, "tag", f"v{number}"], check=True)
    url = f"git+{repository.as_uri()}"
    found = candidates(f"{url}@v0", f"{url}@main", folder)
    listed = subprocess.run([*git, "rev-list", "--reverse", "v0..v2"], check=True, capture_output=True, text=True)
    assert [*found] == [f"{url}@v0", *(f"{url}@{commit}" for commit in listed.stdout.split())]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
    subprocess.run([*pip, [*found.values()][1]], check=True)
    assert (folder / "toyframework.py").read_text() == "NUMBER = 1\n"


@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        ("toyframework==1.3", "toyframework==1.0", "does not come after"),
        ("toyframework==1.0", "toyframework==1.0", "does not come after"),
        ("toyframework==1.0", "toyframework==1.9", "has no release 1.9; it has 1.0, 1.1, 1.2, 1.3"),
        ("toyframework", "toyframework==1.3", "NAME==VERSION"),
        ("toyframework==1.0", "others==1.4", "are not releases of one package"),
        ("git+https://a.example@v1", "git+https://b.example@v2", "are not commits of one repository"),
        ("none==1", "none==2", "No matching distribution"),
    ],
)
def test_ends_that_are_none_are_refused(index, good, bad, why):
    with pytest.raises(CannotBisect, match=why):
        candidates(good, bad, index)
