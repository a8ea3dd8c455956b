"""The zygote's work before it forks changes nothing visible to a trainer."""

from __future__ import annotations

import subprocess
import sys

from conformance.runner.system.child import gather_memory

WARM = "from conformance.runner.rank.preparing import preload, warm_up; preload(); warm_up()"
STATE = """
import torch

def state():
    autocast = torch.is_autocast_enabled("cpu")
    return torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled(), autocast

before = state()
{between}
print(state() == before)
"""


def _printed(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_warming_up_does_not_change_torch():
    assert _printed(STATE.format(between=WARM)) == "True\n"
    assert _printed(STATE.format(between="torch.rand(1)")) == "False\n"


def test_after_warming_up_a_forked_child_can_train():
    """Autograd would refuse to if the parent had run a backward."""
    train = "(torch.ones(1, requires_grad=True) * 2).sum().backward(); os._exit(7)"
    program = f"import os, torch; {WARM}; pid = os.fork()\nif not pid: {train}\nprint(os.waitpid(pid, 0)[1] >> 8)"
    assert _printed(program) == "7\n"


def test_warming_up_never_asks_for_gpus():
    """An autocast of torch 2.6 does, even on the CPU, which starts CUDA without NVML."""
    program = """
import torch

def asking(original):
    def ask(self, *arguments, **options):
        torch.cuda.is_available()
        original(self, *arguments, **options)
    return ask

torch.cuda.is_available = lambda: bool(print("asked"))
torch.autocast.__init__ = asking(torch.autocast.__init__)
{between}
"""
    assert _printed(program.format(between=WARM)) == ""
    assert _printed(program.format(between="torch.autocast('cpu')")) == "asked\n"


def test_after_warming_up_a_recorder_changes_no_class():
    """Otherwise each rank would pay for that again."""
    program = """
import torch
from conformance.trace.recorder import Recorder

def state():
    classes = torch.nn.Module, torch.nn.Linear, torch.nn.parallel.DistributedDataParallel, torch.amp.GradScaler
    return [dict(vars(owner)) for owner in (*classes, torch.optim.Optimizer, torch.autocast, torch.autograd)]

{between}
before = state()
with Recorder(print) as recorder:
    recorder.watch(torch.nn.Linear(2, 1))
    print(state() == before)
"""
    assert _printed(program.format(between=WARM)).splitlines()[-1] == "True"
    assert _printed(program.format(between="from conformance.runner.rank import preparing")).splitlines()[-1] == "False"


def test_gathering_memory_keeps_its_contents():
    pattern = bytes(range(256)) * (1 << 15)
    held = bytearray(pattern)
    gather_memory()
    assert held == pattern
