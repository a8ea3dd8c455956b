"""`conformance.watching()` in Python code, and its pytest fixture."""

import os
import subprocess
import sys

import pytest
import torch

import conformance


def train(*, clears):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()


def test_a_correct_loop_passes_and_torch_is_restored():
    before = torch.optim.Optimizer.zero_grad, torch.autograd._engine_run_backward
    with conformance.watching() as watch:
        train(clears=True)
    assert (watch.findings.conserved, watch.findings.steps) == (3, 3)
    assert (torch.optim.Optimizer.zero_grad, torch.autograd._engine_run_backward) == before


def rank_of(rank, folder, reduces):
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + rank)
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        for parameter in list(model.parameters())[: None if reduces else 1]:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def test_spawned_ranks_are_watched(tmp_path):
    before = dict(os.environ)
    with conformance.watching() as watch:
        torch.multiprocessing.spawn(rank_of, (tmp_path, True), nprocs=2)
    assert (watch.findings.conserved, watch.findings.steps) == (8, 8)
    assert dict(os.environ) == before


def test_wrong_spawned_ranks_fail_the_block(tmp_path):
    with pytest.raises(AssertionError, match="watch/averaged"), conformance.watching():
        torch.multiprocessing.spawn(rank_of, (tmp_path, False), nprocs=2)


FORKS = """
import torch, conformance

def train():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

with conformance.watching() as watch:
    train()
    process = torch.multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    train()
print(watch.findings.conserved, watch.findings.steps)
"""


def test_a_forked_process_has_its_own_recorder():
    """In a new process, because other tests have threads, and forks of those may hang."""
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.returncode) == ("9 9\n", 0), ended.stderr


def test_an_existing_optimizer_is_watched_from_its_first_step():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with conformance.watching() as watch:
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    assert (watch.findings.conserved, watch.findings.steps) == (1, 1)


TESTS = """
import pytest, torch

def train(clears=True):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()

def test_right(conformance_watch):
    train()

def test_wrong(conformance_watch):
    train(clears=False)

def test_idle(conformance_watch):
    pass

def test_raises(conformance_watch):
    train(clears=False)
    raise KeyError("its own")

def test_skips(conformance_watch):
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise OSError("no such data")

def test_not_run(conformance_watch, broken):
    pass

def test_plain():
    train(clears=False)
"""


def test_the_fixture_fails_the_test_itself(pytester):
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    ran.assert_outcomes(passed=2, failed=3, skipped=1, errors=1)
    text = ran.stdout.str()
    for line in (
        "DOES NOT CONFORM: *",
        "UNDECIDED: *",
        "*KeyError: 'its own'*",
        "*OSError: no such data*",
        "FAILED *::test_wrong - *",
        "ERROR *::test_not_run - *",
    ):
        ran.stdout.fnmatch_lines_random(line)
    assert "ERROR at teardown" not in text
    assert "During handling" not in text


def test_a_watch_without_a_check_has_the_verdict_and_the_report():
    with conformance.watching(check=False) as watch:
        train(clears=False)
    assert watch.verdict == "DOES NOT CONFORM"
    assert str(watch).startswith("DOES NOT CONFORM: ")
    page = watch._repr_html_()
    assert page.startswith('<iframe srcdoc="')
    assert "DOES NOT CONFORM" in page


def rank_that_watches(rank, folder, reduces):
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with conformance.watching(check=False) as watch:
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + rank)
            model(torch.randn(4, 3, generator=generator)).square().mean().backward()
            for parameter in list(model.parameters())[: None if reduces else 1]:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= 2
            optimizer.step()
            optimizer.zero_grad()
    (folder / f"verdict-{rank}").write_text(f"{watch.verdict} {watch.findings.steps}")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("reduces", "says"), [(True, "CONFORMS 8"), (False, "DOES NOT CONFORM 8")])
def test_ranks_that_each_watch_share_a_verdict(tmp_path, reduces, says):
    torch.multiprocessing.spawn(rank_that_watches, (tmp_path, reduces), nprocs=2)
    assert [(tmp_path / f"verdict-{rank}").read_text() for rank in range(2)] == [says, says]
