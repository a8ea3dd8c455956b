"""A stopped run loses no finished case, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from conformance.cli import engine
from conformance.report import html

FIRST, SECOND, BLOCKED, NEVER = (f"single-{path}-fp32-momentum" for path in ("batched", "acc2", "acc3", "acc4"))
CHOSEN = [word for case in (FIRST, SECOND, BLOCKED, NEVER) for word in ("--case", case)]

#: The server of the rank survives.
KILLS_ANCESTORS = """
if task.accumulation == 4:
    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    pid = parent_of(os.getppid())
    while "conformance.runner.zygote" in open(f"/proc/{pid}/cmdline").read():
        pid, ancestor = parent_of(pid), pid
        os.kill(ancestor, 9)
"""

#: Kills the processes that run the cases, which xdist starts in the folder of the run.
KILLS_WORKERS = """
if task.accumulation == 3 and not os.path.exists("calm"):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "signal.SIGHUP" in open(f"/proc/{name}/cmdline").read() and os.path.samefile(f"/proc/{name}/cwd", "."):
                os.kill(int(name), 9)
        except OSError:
            continue
    time.sleep(60)
"""


@pytest.fixture
def processes_below():
    """The children of a process, their children, and so on."""

    def look(pid):
        found, generation = [], [pid]
        while generation:
            tasks = [task for pid in generation for task in Path(f"/proc/{pid}/task").iterdir()]
            generation = [int(child) for task in tasks for child in (task / "children").read_text().split()]
            found.append(generation)
        return found

    return look


@pytest.fixture
def temporary(tmp_path_factory):
    """A run's folder for temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture
def blocked(write, gate, command, temporary):
    """A run with two finished cases and a third in the middle of training."""

    def start(processes: str = "1"):
        target = write(f"if task.accumulation == 3: open({str(gate)!r}).read()", name="waits.py")
        run = command("run", target, *CHOSEN, "-n", processes, env={"TMPDIR": str(temporary)})
        # Opening it waits until the trainer opens it.
        return run, os.open(gate, os.O_WRONLY)

    return start


def lines(file="conformance-results.jsonl"):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def unblock():
    """Unblocks the third case; a waiting rank continues when the gate is closed."""
    Path("gate").unlink()
    Path("gate").write_text("")


def resumed(conformance, *more):
    """Resumes the killed run, with its third case unblocked."""
    unblock()
    return conformance("run", "waits.py", *CHOSEN, "--resume", *more)


def test_killed_and_resumed(blocked, all_gone, conformance, temporary):
    """It prints and leaves nothing. Finished cases are kept and not rerun; earlier results stay until there are
    newer ones, but no report."""
    Path("conformance-results.jsonl").write_text("earlier results\n")
    Path("conformance-report.html").write_text("Conforming")
    run, gate = blocked()
    handles = run.handles()
    assert len(handles) >= 4, "the front process, the zygote, the server and its rank"
    os.kill(run.process.pid, signal.SIGKILL)
    ended = run.ended()
    assert (ended.code, ended.out, ended.err) == (-signal.SIGKILL, "", "")
    assert all_gone(handles)
    assert list(temporary.iterdir()) == []
    os.close(gate)
    [own] = Path().glob("conformance-unfinished-*.jsonl")
    before = lines(own)
    assert [(line["kind"], line.get("id")) for line in before] == [("header", None), ("case", FIRST), ("case", SECOND)]
    assert Path("conformance-results.jsonl").read_text() == "earlier results\n"
    assert not Path("conformance-report.html").exists()

    ended = conformance("report", str(own), "--output", "again.html")
    assert (ended.code, ended.err) == (1, "")
    assert "INCOMPLETE: the run was cut off: 2 of 4 cases" in ended.out
    assert "UNDECIDED: " in ended.out
    assert "2 of 4 cases" in Path("again.html").read_text()

    with own.open("a") as file:
        file.write('{"kind":"case","id":"to')
    ended = resumed(conformance)
    assert (ended.code, ended.err) == (0, "")
    header, *cases, footer = lines()
    assert cases[:2] == before[1:]
    assert [case["id"] for case in cases] == [FIRST, SECOND, BLOCKED, NEVER]
    assert (header["planned"], footer["cases"], footer["complete"]) == (4, 4, True)
    assert "All 4 cases passed" in Path("conformance-report.html").read_text()
    assert list(Path().glob("conformance-unfinished-*")) == []


def test_workers_of_a_run_that_is_killed_print_and_leave_nothing(blocked, all_gone, temporary):
    run, gate = blocked("2")
    handles = run.handles()
    os.kill(run.process.pid, signal.SIGKILL)
    ended = run.ended()
    assert all_gone(handles)
    os.close(gate)
    assert (ended.out, ended.err) == ("", "")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("sent", "processes"),
    [(signal.SIGINT, "1"), (signal.SIGTERM, "2"), (signal.SIGHUP, "1")],
)
def test_interrupted_and_resumed(blocked, all_gone, conformance, temporary, sent, processes):
    run, gate = blocked(processes)
    handles = run.handles()
    # As by a terminal on Ctrl-C, or when it is closed.
    os.killpg(run.process.pid, sent)
    ended = run.ended()
    assert all_gone(handles)
    assert list(temporary.iterdir()) == []
    os.close(gate)
    assert ended.code == 130
    left = {path.name for path in Path().iterdir()} - {"__pycache__", "gate", "waits.py"}
    if processes == "1" or left:
        assert left == {"conformance-report.html", "conformance-results.jsonl"}
        header, *cases, footer = lines()
        assert (header["kind"], footer["kind"], footer["complete"]) == ("header", "footer", False)
        assert footer["cases"] == len(cases) < 4
        assert BLOCKED not in [case["id"] for case in cases]
        kept = (
            f"conformance: interrupted with {len(cases)} of 4 cases in conformance-results.jsonl; run the others with: "
        )
        words = f"waits.py {' '.join(CHOSEN)} -n {processes} --resume"
        assert ended.line == f"{kept}conformance run {words}"
        assert f"INCOMPLETE: the run was cut off: {len(cases)} of 4 cases" in ended.out
        assert conformance("report", "conformance-results.jsonl").code == 1
    else:
        # The worker with the blocked case was faster than the other.
        assert ended.line == "conformance: interrupted before the first case finished"
    if processes == "1":
        assert [case["id"] for case in cases] == [FIRST, SECOND]
    ended = resumed(conformance, "-n", processes)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(line["id"] for line in lines()[1:-1]) == sorted([FIRST, SECOND, BLOCKED, NEVER])


@pytest.mark.parametrize("processes", ["1", "2"])
def test_without_a_terminal_lines_say_how_far_it_is(conformance, write, monkeypatch, processes):
    monkeypatch.setattr(engine, "PAUSE", 0.2)
    target = write("time.sleep(1.5)")
    ended = conformance("run", target, "--case", FIRST, "-n", processes)
    said = [line for line in ended.out.splitlines() if line.startswith("judging cases: 0 of 1, ")]
    assert (ended.code, ended.err) == (0, "")
    assert len(said) > 1
    ended = conformance("run", target, "--case", FIRST, "-n", processes, "--quiet")
    assert "judging cases" not in ended.out


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted_before_it_begins(conformance, write, monkeypatch, sent):
    def killed(folder):
        os.kill(os.getpid(), sent)

    target = write()
    monkeypatch.setattr("conformance.cli.run.RunFolder", killed)
    # It would be ignored under nohup.
    before = signal.signal(sent, signal.SIG_DFL)
    ended = conformance("run", target)
    signal.signal(sent, before)
    assert (ended.code, ended.line) == (130, "conformance: interrupted")


def test_interrupted_twice(conformance, write, monkeypatch):
    """The second time while workers end: finished cases are still in the report."""
    runs = pytest.main

    def interrupted(*arguments, **options):
        runs(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(pytest, "main", interrupted)
    ended = conformance("run", write(), "--case", FIRST)
    assert (ended.code, ended.line) == (130, "conformance: interrupted with 1 of 1 cases in conformance-results.jsonl")
    assert "The only case passed" in ended.out
    assert Path("conformance-report.html").exists()


def test_interrupted_while_the_report_is_written(conformance, write, monkeypatch):
    """Nothing is left to stop."""
    renders = html.render_html

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        renders(*arguments)

    monkeypatch.setattr(html, "render_html", interrupted)
    ended = conformance("run", write(), "--case", FIRST)
    assert (ended.code, ended.err) == (0, "")
    assert Path("conformance-report.html").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("victim", ["the process that imports torch", "the importer", "the servers", "the workers"])
def test_what_is_killed_costs_no_case(blocked, processes_below, victim):
    """As by the system when memory runs out."""
    run, gate = blocked("2" if victim == "the workers" else "1")
    unblock()
    children, *generations = processes_below(run.process.pid)
    workers = [pid for pid in children if "zygote" not in Path(f"/proc/{pid}/cmdline").read_text()]
    [torch] = set(children) - set(workers)
    importers, servers, *_ = generations
    victims = {"the workers": workers, "the importer": importers, "the servers": servers}
    for pid in victims.get(victim, [torch]):
        os.kill(pid, signal.SIGKILL)
    os.close(gate)
    ended = run.ended()
    assert (ended.code, ended.err) == (0, "")
    assert sorted(case["id"] for case in lines()[1:-1]) == sorted([FIRST, SECOND, BLOCKED, NEVER])
    assert lines()[-1]["complete"]


def test_workers_that_are_killed_each_time(write, conformance):
    """By one case: it has no verdict, all others do, and the run can be resumed."""
    target = write(KILLS_WORKERS, name="waits.py")
    ended = conformance("run", target, *CHOSEN, "-n", "2")
    assert ended.code == 3
    assert ended.line == (
        f"conformance: the harness failed: {BLOCKED}: the worker process of this case was killed twice, perhaps "
        "because memory ran out; the same command with --resume runs the case again"
    )
    assert sorted(case["id"] for case in lines()[1:-1]) == sorted([FIRST, SECOND, NEVER])
    assert not lines()[-1]["complete"]
    assert "INCOMPLETE: the run was cut off: 3 of 4 cases" in ended.out
    Path("calm").touch()
    ended = conformance("run", target, *CHOSEN, "-n", "2", "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert sorted(case["id"] for case in lines()[1:-1]) == sorted([FIRST, SECOND, BLOCKED, NEVER])
    assert lines()[-1]["complete"]


def test_what_servers_are_forked_from_is_killed_at_the_end(write, conformance):
    """By the last case: only the end of all processes follows."""
    ended = conformance("run", write(KILLS_ANCESTORS, name="waits.py"), *CHOSEN)
    assert (ended.code, ended.err) == (0, "")
    assert [case["id"] for case in lines()[1:-1]] == [FIRST, SECOND, BLOCKED, NEVER]
    assert lines()[-1]["complete"]


def test_what_cannot_be_resumed(blocked, conformance, write):
    """Another trainer, option or version: one line, and the finished cases stay."""
    run, gate = blocked()
    run.process.kill()
    run.ended()
    os.close(gate)
    [own] = Path().glob("conformance-unfinished-*.jsonl")
    write(name="other.py")
    whole = own.read_text()

    def refusal(*arguments):
        ended = conformance("run", *arguments, "--resume")
        assert (ended.code, ended.out) == (2, "")
        return ended.line

    assert f"cannot resume {own}: trainers then: waits.py, now: other.py" in refusal("other.py", *CHOSEN)
    assert "--thorough then: False, now: True" in refusal("waits.py", *CHOSEN, "--thorough")
    assert "--time-limit then: 60.0, now: 9.0" in refusal("waits.py", *CHOSEN, "--time-limit", "9")
    assert "--case then: " in refusal("waits.py", *CHOSEN[2:])
    other = whole.replace('"version":"', '"version":"0.', 1)
    own.write_text(other)
    assert "version 0." in refusal("waits.py", *CHOSEN)
    assert own.read_text() == other


def cut_off(count):
    """Cuts the results as if the run had been killed after ``count`` cases."""
    whole = Path("conformance-results.jsonl").read_text().splitlines(keepends=True)
    Path("conformance-results.jsonl").write_text("".join(whole[: 1 + count]))
    return lines()[1:]


@pytest.mark.parametrize("changes", ["edited", "gone", "new"])
def test_a_changed_file_has_the_cases_run_again(conformance, write, changes):
    """Cases of trainers that import it; finished cases of others are kept."""
    mine, other = write("try: import helper\nexcept ImportError: pass", name="mine/a.py"), write(name="other.py")
    helper = Path("mine/helper.py")
    if changes != "new":
        helper.write_text("")
    arguments = (mine, other, "--case", FIRST, "--case", SECOND)
    assert conformance("run", *arguments).code == 0
    before = cut_off(3)
    assert [case["target"] for case in before] == [mine, mine, other]
    if changes == "gone":
        helper.unlink()
    else:
        helper.write_text("import os\n")
    ended = conformance("run", *arguments, "--resume")
    assert (ended.code, ended.err) == (0, "")
    said = "mine/helper.py changed since then: all cases of mine/a.py run again."
    assert ended.out.splitlines()[0] == said
    after = {(case["target"], case["id"]): case for case in lines()[1:-1]}
    assert len(after) == lines()[-1]["cases"] == 4
    assert [case in after.values() for case in before] == [False, False, True]
    cut_off(3)
    ended = conformance("run", *arguments, "--resume")
    assert "changed since then" not in ended.out


def test_a_trainer_that_changed_may_have_other_cases(conformance, write):
    target = Path(write(name="mine.py"))
    arguments = ("run", str(target), "--case", "backend=single,layout=batched,precision=fp16")
    source = target.read_text()
    target.write_text(source.replace('"fp16"', ""))
    conformance(*arguments)
    [unsupported] = lines()[1:-1]
    cut_off(1)
    target.write_text(source)
    ended = conformance(*arguments, "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert "mine.py changed since then: all cases of mine.py run again." in ended.out
    assert unsupported["verdict"] == "UNSUPPORTED"
    assert lines()[-1]["cases"] > 1


def test_what_is_no_run_that_was_killed(conformance, write):
    """A file that only has the name of one."""
    Path("conformance-unfinished-1.jsonl").mkdir()
    os.mkfifo("conformance-unfinished-2.jsonl")
    Path("conformance-unfinished-3.jsonl").symlink_to("conformance-unfinished-3.jsonl")
    Path("conformance-unfinished-4.jsonl").touch()
    ended = conformance("run", write(), "--case", FIRST, "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert "Nothing to resume in .: running all cases." in ended.out


def test_two_runs_in_one_folder(blocked, conformance, write):
    """Neither destroys the results of the other, and each report belongs to the results next to it."""
    run, gate = blocked()
    other = conformance("run", write(name="other.py"), "--case", FIRST)
    assert (other.code, other.err) == (0, "")
    os.close(gate)
    ended = run.ended()
    assert (ended.code, ended.err) == (0, "")
    assert [line.get("trainer") for line in lines()] == [None, "other", None]
    assert "All 4 cases passed" not in Path("conformance-report.html").read_text()
    assert len(lines("conformance-results-2.jsonl")) == 6
    assert "All 4 cases passed" in Path("conformance-report-2.html").read_text()
    assert ended.out.endswith("Report: conformance-report-2.html\n")
