"""An injected recorder does not change what a script does, prints or draws at random."""

import os
import subprocess
import sys
import textwrap

import pytest

from conformance.cli.exits import NOT_CONFORMING, UNDECIDED
from conformance.watch.ledger import FAILED, NAME, Ledger
from conformance.watch.watching import environment

HIDDEN = "import builtins\nbuiltins.hidden = 'ran'\n"

SCRIPT = """
    import builtins, hashlib, os, random, sys, warnings
    import numpy, torch
    random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(12, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for epoch in range(2):
        for (rows,) in loader:
            loss = model(rows).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    digest = hashlib.sha256()
    digest.update(repr(random.getstate()).encode())
    digest.update(numpy.random.get_state()[1].tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(digest.hexdigest(), builtins.hidden, sys.argv[1:], torch.is_grad_enabled(), len(warnings.filters))
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\\xff\\x00\\x1b[1m no text\\r\\n")
    sys.stderr.buffer.write(b"\\xfe from the script\\n")
"""


def run(tmp_path, source, *, watch, arguments=(), file="train.py"):
    hidden = tmp_path / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "sitecustomize.py").write_text(HIDDEN)
    script = tmp_path / file
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "conformance", "watch", "--"] if watch else []
    path = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [*command, sys.executable, str(script), *arguments],
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_output_random_numbers_and_weights_are_unchanged(tmp_path):
    plain, watched = (run(tmp_path, SCRIPT, watch=watch, arguments=["--lr", "a b"]) for watch in (False, True))
    assert plain.returncode == 0, plain.stderr
    assert b"ran ['--lr', 'a b'] True" in plain.stdout
    assert watched.stdout.startswith(plain.stdout)
    assert b"CONFORMS: train.py: 6 of 6 steps" in watched.stdout[len(plain.stdout) :]
    assert watched.stderr == plain.stderr
    assert watched.returncode == 0


@pytest.mark.parametrize(
    ("perturbed", "observers"),
    [
        (
            "torch.Tensor.index_add_ = lambda *args: 1 / 0",
            ["(leaves): ZeroDivisionError", "(optimizer_steps): ZeroDivisionError"],
        ),
        ("import zlib; zlib.crc32 = None", ["(inputs): TypeError"]),
    ],
)
def test_an_observer_that_fails_is_switched_off_and_named(tmp_path, perturbed, observers):
    source = SCRIPT.replace("import numpy, torch\n", f"import numpy, torch\n    {perturbed}\n")
    watched = run(tmp_path, source, watch=True)
    assert watched.stderr == b"\xfe from the script\n"
    own, _, said = watched.stdout.partition(b"no text\r\n")
    assert b"ran [] True" in own
    assert said.startswith(b"UNDECIDED: ")
    for observer in observers:
        assert observer in " ".join(said.decode().split())
    assert watched.returncode == UNDECIDED


def recorded(tmp_path, source):
    """The files that the processes of a script write."""
    folder = tmp_path / "records"
    folder.mkdir()
    Ledger.made(folder)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    env = environment(str(folder), os.environ)
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=300, capture_output=True)
    return sorted(file.name for file in folder.iterdir() if file.name != NAME)


def test_a_process_without_an_optimizer_writes_no_file(tmp_path):
    source = """
        import torch
        model = torch.nn.Linear(3, 2)
        data = torch.utils.data.DataLoader(torch.randn(8, 3), num_workers=2)
        for row in data:
            model(row).sum().backward()
    """
    assert recorded(tmp_path, source) == []


TRAIN = """
import torch
def train():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
train()
"""


def test_each_process_with_an_optimizer_writes_a_separate_file(tmp_path):
    source = (
        f"import subprocess, sys\nTRAIN = {TRAIN!r}\nexec(TRAIN)\n"
        "subprocess.run([sys.executable, '-c', TRAIN], check=True)\n"
        "torch.multiprocessing.get_context('fork').Process(target=train).start()\n"
    )
    files = recorded(tmp_path, source)
    assert len(files) == 3
    assert all(name.endswith(".0.jsonl") for name in files)


def test_a_package_that_cannot_be_imported_is_named_and_the_script_runs(tmp_path):
    """For example in a process with another Python."""
    folder = tmp_path / "records"
    folder.mkdir()
    ledger = Ledger.made(folder)
    env = {**environment(str(folder), os.environ), "CONFORMANCE_WATCH_HOME": str(tmp_path / "nowhere")}
    source = "import torch; print('runs')"
    ran = subprocess.run([sys.executable, "-c", source], env=env, check=True, capture_output=True, text=True)
    assert ran.stdout == "runs\n"
    assert ran.stderr == ""
    [account] = ledger.accounts()
    assert (account.state, account.records) == (FAILED, 0)
    assert "FileNotFoundError" in account.reason


TRAINS = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.randn(2, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def watched(folder, *script):
    # With PYTHONSAFEPATH, a script cannot import the modules next to it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-m", "conformance", "watch", "--", *script]
    return subprocess.run(command, capture_output=True, cwd=folder, env=env, timeout=300, check=False)


def test_modules_of_the_script_may_have_names_of_the_standard_library(tmp_path):
    """The script first looks for torch without importing it, as transformers and datasets do."""
    for name in ("fcntl", "resource"):
        (tmp_path / f"{name}.py").write_text("OWN = 'its own'\n")
    first = "import importlib.util\nassert importlib.util.find_spec('torch')\nimport torch, fcntl, resource\n"
    (tmp_path / "train.py").write_text(f"{first}print(fcntl.OWN, resource.OWN)\n{TRAINS}")
    found = watched("/", sys.executable, str(tmp_path / "train.py"))
    assert found.stdout.startswith(b"its own its own\n"), found.stderr
    assert b"CONFORMS: train.py: 4 of 4 steps" in found.stdout


@pytest.mark.parametrize("ends", ["at exit", "hooks"])
def test_steps_in_exit_handlers_and_without_hooks(tmp_path, ends):
    wrong = TRAINS.replace("optimizer.zero_grad()", "pass")
    (tmp_path / "wrong.py").write_text(wrong)
    source = {
        "at exit": f"import atexit\natexit.register(lambda: exec(open('wrong.py').read(), {{}})){TRAINS}",
        "hooks": f"{TRAINS}\nfrom torch.optim.optimizer import _global_optimizer_pre_hooks as hooks\n"
        "hooks.clear()\nexec(open('wrong.py').read())",
    }[ends]
    (tmp_path / "train.py").write_text(source)
    found = watched(tmp_path, sys.executable, "train.py")
    assert (found.returncode in (NOT_CONFORMING, UNDECIDED), found.stderr) == (True, b"")
    assert not found.stdout.startswith(b"CONFORMS")


def test_a_failed_part_shows_in_a_process_that_exits_immediately(tmp_path):
    """Unseen steps may be wrong, though the numbers of records and the ledger agree."""
    wrong = TRAINS.replace("optimizer.zero_grad()", "pass")
    fails = "def fails():\n    raise SystemError('mine')\nimport os\nos.getpid = fails\n"
    (tmp_path / "train.py").write_text(f"{TRAINS}\n{fails}{wrong}\nos._exit(0)\n")
    found = watched(tmp_path, sys.executable, "train.py")
    assert (found.returncode, found.stderr) == (UNDECIDED, b"")
    assert b"a part of the recorder failed" in b" ".join(found.stdout.split())
