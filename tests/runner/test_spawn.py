"""Trainers whose import makes forks unsafe run in fresh interpreters, and the server reports why."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer, TrainerError

LIMIT = 60.0

THREAD = """
class Weather(threading.Thread):
    def __init__(self):
        super().__init__(name="weather", daemon=True)
        self.changed = threading.Event()

    def run(self):
        self.changed.wait()

weather = Weather()
weather.start()
"""
GROUP = """
if "RANK" not in os.environ:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_a_thread_started_on_import(write, make_spec):
    target = write("print(weather.is_alive(), sys.argv)", THREAD)
    with ForkServer(target, "ddp") as server:
        assert server.why_slow == (
            f"{target} takes seconds per case, because each rank starts a fresh Python that imports torch: forks are "
            "unsafe after its import, with 1 thread running (weather). Start threads inside its function, not on "
            "import."
        )
        outcome = server.run(make_spec("ddp"), LIMIT)
    for rank in outcome.ranks:
        assert rank.finished, rank
        assert rank.exit == "exited 0"
        assert rank.output == f"True [{target!r}]\n"
        assert [event["event"] for event in rank.events].count("step") == 3


@pytest.mark.parametrize("before", ["", THREAD], ids=["fork", "spawn"])
def test_ranks_collect_garbage(write, make_spec, before):
    """Their ancestors switch collection off during imports."""
    target = write("import gc; print(gc.isenabled())", before)
    with ForkServer(target, "single") as server:
        assert (server.why_slow is None) == (not before)
        (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
    assert rank.output == "True\n"


NEVER = """
def __getattr__(name):
    threading.Event().wait(None if name == "never" else 0)
    raise AttributeError(name)
"""


@pytest.mark.parametrize("before", ["", THREAD], ids=["fork", "spawn"])
def test_a_server_that_is_never_ready_is_killed(write, before):
    """The lookup of the trainer's function waits forever, after a successful import."""
    target = f"{write('', before + NEVER)}:never"
    why = r"py:never: not ready after 5 s; the trainer's server died \(killed by SIGKILL\)$"
    with pytest.raises(TrainerError, match=why), ForkServer(target, "single", import_limit=5.0):
        pass


def test_threads_that_ended_on_import_do_no_harm(write):
    pool = """
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(abs, range(99)))
    """
    with ForkServer(write("", pool), "ddp") as server:
        assert server.why_slow is None


def test_a_process_group_set_up_on_import(write):
    with ForkServer(write("", GROUP), "ddp") as server:
        assert server.why_slow is not None


def test_failures_of_spawned_ranks(write, ran):
    inside = """
    if task.rank == 1:
        wait_for_godot()
    """
    godot = "def wait_for_godot(): threading.Event().wait()"
    outcome = ran(write(inside, f"{THREAD}\n{godot}"), limit=3.0)
    assert outcome.timed_out
    assert "in wait_for_godot" in str(outcome.ranks[1].stack)


def test_an_import_that_fails_only_in_the_rank(write, ran):
    target = write("", f"{THREAD}\nif 'RANK' in os.environ: raise OSError('port is taken')")
    outcome = ran(target)
    for rank in outcome.ranks:
        assert not rank.finished
        assert "port is taken" in rank.events[-1]["message"]


def test_an_import_that_hangs_only_in_the_rank(write, ran):
    target = write("", f"{THREAD}\nif 'RANK' in os.environ: threading.Event().wait()")
    outcome = ran(target, limit=2.0)
    assert outcome.timed_out
    assert {rank.exit for rank in outcome.ranks} == {"killed at the time limit of 2 s"}


@pytest.mark.parametrize("world_size", [1])
def test_horovod_in_spawned_ranks(write, make_spec, horovod, world_size):
    with open(target := horovod("print(hvd.size())"), "a") as file:
        file.write(f"\nimport threading\n{THREAD}")
    with ForkServer(target, "horovod") as server:
        assert server.why_slow is not None
        outcome = server.run(make_spec("horovod", world_size), LIMIT)
    assert [rank.exit for rank in outcome.ranks] == ["exited 0"] * world_size
