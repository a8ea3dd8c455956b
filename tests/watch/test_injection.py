"""Injected into a process, the recorder changes nothing that the script does, prints or draws."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

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
    sys.stderr.buffer.write(b"\\xfe of its own\\n")
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


def test_output_random_numbers_and_weights_are_those_without_it(tmp_path):
    plain, watched = (run(tmp_path, SCRIPT, watch=watch, arguments=["--lr", "a b"]) for watch in (False, True))
    assert plain.returncode == 0, plain.stderr
    assert b"ran ['--lr', 'a b'] True" in plain.stdout
    assert watched.stdout.startswith(plain.stdout)
    assert b"CONFORMS: In 6 of 6 steps" in watched.stdout[len(plain.stdout) :]
    assert watched.stderr == plain.stderr
    assert watched.returncode == 0


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise ValueError('its own')", 1),
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", 128 + signal.SIGKILL),
        (f"os.kill(os.getpid(), {int(signal.SIGTERM)})", 128 + signal.SIGTERM),
    ],
)
def test_the_scripts_own_failure_wins_and_is_told_apart(tmp_path, ends, code):
    watched = run(tmp_path, f"{SCRIPT}\n    {ends}\n", watch=True)
    assert watched.returncode == code
    assert b"conformance: the script itself failed with exit code" in watched.stderr
    assert b"UNDECIDED: In 6 of 6 steps" in watched.stdout


@pytest.mark.parametrize(
    ("perturbed", "observers"),
    [
        ("torch.Tensor.index_add_ = lambda *args: 1 / 0", ["leaves: ZeroDivisionError", "steps: ZeroDivisionError"]),
        ("import zlib; zlib.crc32 = None", ["inputs: TypeError"]),
    ],
)
def test_an_observer_that_fails_is_switched_off_and_named(tmp_path, perturbed, observers):
    source = SCRIPT.replace("import numpy, torch\n", f"import numpy, torch\n    {perturbed}\n")
    plain, watched = (run(tmp_path, source, watch=watch) for watch in (False, True))
    assert plain.returncode == 0, plain.stderr
    assert watched.stdout.startswith(plain.stdout)
    assert watched.stderr == plain.stderr
    said = watched.stdout[len(plain.stdout) :].decode()
    assert said.startswith("UNDECIDED: ")
    for observer in observers:
        assert f"a part of the recorder failed: {observer}" in " ".join(said.split())
    assert watched.returncode == 1


def recorded(tmp_path, source):
    """The files that the processes of a script leave."""
    folder = tmp_path / "records"
    folder.mkdir()
    Ledger.made(folder)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    env = environment(str(folder), os.environ)
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=300, capture_output=True)
    return sorted(file.name for file in folder.iterdir() if file.name != NAME)


def test_a_process_without_an_optimizer_leaves_nothing(tmp_path):
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


def test_each_process_with_one_leaves_a_file_of_its_own(tmp_path):
    source = (
        f"import subprocess, sys\nTRAIN = {TRAIN!r}\nexec(TRAIN)\n"
        "subprocess.run([sys.executable, '-c', TRAIN], check=True)\n"
        "torch.multiprocessing.get_context('fork').Process(target=train).start()\n"
    )
    files = recorded(tmp_path, source)
    assert len(files) == 3
    assert all(name.endswith(".0.jsonl") for name in files)


def test_a_package_that_cannot_be_imported_is_named_and_the_script_runs(tmp_path):
    """Such as in a process with another Python."""
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


def test_a_script_may_look_whether_torch_is_there_first(tmp_path):
    """As transformers and datasets do when they are imported."""
    source = """
        import importlib.util
        assert importlib.util.find_spec("torch")
        import torch
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.randn(2, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    found = run(tmp_path, source, watch=True)
    assert found.returncode == 0
    assert b"CONFORMS: In 4 of 4 steps" in found.stdout


TRAINS = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.randn(2, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def watched(folder, *command, **variables):
    return ran(folder, sys.executable, "-m", "conformance", "watch", "--", *command, **variables)


def ran(folder, *command, **variables):
    # With PYTHONSAFEPATH, a script cannot import the modules next to it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | variables
    return subprocess.run(command, capture_output=True, cwd=folder, env=env, timeout=300, check=False)


@pytest.mark.parametrize("first", ["import torch, conformance", "import conformance, torch"])
def test_a_module_of_the_scripts_own_may_have_our_name(tmp_path, first):
    package = tmp_path / "own" / "conformance"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"def train():\n{textwrap.indent(TRAINS, '    ')}")
    (package / "rules.py").write_text("RULE = 'its own'\n")
    last = "from conformance import rules\nconformance.train()\nprint(rules.RULE, conformance.__file__)\n"
    (tmp_path / "own" / "train.py").write_text(f"{first}\n{last}")
    found = watched(tmp_path, sys.executable, "own/train.py")
    assert found.stdout.startswith(f"its own {package / '__init__.py'}\n".encode()), found.stderr
    assert b"CONFORMS: In 4 of 4 steps" in found.stdout


@pytest.mark.parametrize("is_package", [False, True])
def test_a_sitecustomize_of_any_kind_is_the_module_of_this_name(tmp_path, is_package):
    hidden = tmp_path / "hidden"
    (hidden / "sitecustomize").mkdir(parents=True)
    file = hidden / "sitecustomize" / "__init__.py" if is_package else hidden / "sitecustomize.py"
    file.write_text("import sys\nOWN = sys.modules['sitecustomize'].__file__\n")
    (tmp_path / "train.py").write_text(f"import sitecustomize\nprint(sitecustomize.OWN){TRAINS}")
    found = watched(tmp_path, sys.executable, "train.py", PYTHONPATH=str(hidden))
    assert found.stdout.startswith(f"{file}\n".encode()), found.stderr
    assert b"CONFORMS: In 4 of 4 steps" in found.stdout


@pytest.mark.parametrize(
    "variables", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["any", "C"]
)
@pytest.mark.parametrize("name", [b"tr\xffin.py", "trän.py".encode()])
def test_names_of_any_bytes_are_recorded(tmp_path, name, variables):
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "w") as file:
        file.write(TRAINS.replace("optimizer.zero_grad()", "pass"))
    found = watched(tmp_path, sys.executable, os.fsdecode(path), **variables)
    assert found.stdout.startswith(b"DOES NOT CONFORM"), found.stderr
    assert b"7 | " in found.stdout
    assert found.returncode == 1


@pytest.mark.parametrize("how", ["-I", "-E", "env -i"])
def test_a_process_that_cannot_be_reached_is_named(tmp_path, how):
    (tmp_path / "train.py").write_text(TRAINS + "import time; time.sleep(1)\n")
    command = ["env", "-i", sys.executable, "train.py"] if how == "env -i" else [sys.executable, how, "train.py"]
    found = watched(tmp_path, *command)
    said = b" ".join(found.stdout.split())
    assert said.startswith(b"UNDECIDED")
    assert b"used torch without a recorder" in said
    assert b"train.py" in said
    assert b"no step of a torch optimizer was seen" not in said


@pytest.mark.parametrize("name", ["fcntl", "resource", "queue"])
def test_a_module_of_the_scripts_own_may_have_the_name_of_one_of_pythons(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("OWN = 'its own'\n")
    before = "" if name == "queue" else f"import {name}\nprint({name}.OWN)\n"
    (tmp_path / "train.py").write_text(f"import torch\n{before}{TRAINS}")
    plain = ran(tmp_path, sys.executable, "train.py")
    found = watched("/", sys.executable, str(tmp_path / "train.py"))
    assert found.stdout.startswith(plain.stdout)
    assert plain.returncode or b"CONFORMS: In 4 of 4 steps" in found.stdout


@pytest.mark.parametrize("ends", ["exec", "at exit", "hooks"])
def test_what_comes_after_the_last_step_that_was_seen(tmp_path, ends):
    wrong = TRAINS.replace("optimizer.zero_grad()", "pass")
    (tmp_path / "wrong.py").write_text(wrong)
    source = {
        "exec": f"{TRAINS}\nimport os, sys\nos.execv(sys.executable, [sys.executable, '-I', 'wrong.py'])\n",
        "at exit": f"import atexit\natexit.register(lambda: exec(open('wrong.py').read(), {{}})){TRAINS}",
        "hooks": f"{TRAINS}\nfrom torch.optim.optimizer import _global_optimizer_pre_hooks as hooks\n"
        "hooks.clear()\nexec(open('wrong.py').read())",
    }[ends]
    (tmp_path / "train.py").write_text(source)
    found = watched(tmp_path, sys.executable, "train.py")
    assert (found.returncode, found.stderr) == (1, b"")
    assert not found.stdout.startswith(b"CONFORMS")


def test_a_part_that_fails_shows_in_a_process_that_leaves_at_once(tmp_path):
    """What it has not seen might be wrong, though the numbers of its records and of the ledger are the same."""
    wrong = TRAINS.replace("optimizer.zero_grad()", "pass")
    fails = "def fails():\n    raise SystemError('mine')\nimport os\nos.getpid = fails\n"
    (tmp_path / "train.py").write_text(f"{TRAINS}\n{fails}{wrong}\nos._exit(0)\n")
    found = watched(tmp_path, sys.executable, "train.py")
    assert (found.returncode, found.stderr) == (1, b"")
    assert b"a part of the recorder failed" in b" ".join(found.stdout.split())
