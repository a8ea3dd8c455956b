"""The project's checks, a session each. `nox` runs them all, `nox -l` lists them.

A backend's session validates the reference trainers, or the trainer that is named:
`nox -s ddp -- my_trainer.py`.

What runs is the built wheel, which is built once per run of nox, and never the checkout. A plain `nox` runs two
sessions at a time, each in a process of its own, as what a session installs or checks seldom keeps more than one core
busy; `tests` does, and so it runs alone. Where sessions are named, one runs after the other, and prints as it goes.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nox

# Sessions that run at the same time.
nox.needs_version = ">=2026.10.20"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.allow_parallel = True
if len(sys.argv) == 1:
    nox.options.parallel = 2

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST_CONSTRAINTS = ROOT / "constraints-oldest.txt"
# Where the wheel of this run is. Processes of its sessions inherit that from the one that starts them.
WHEELS = Path(os.environ.setdefault("CONFORMANCE_WHEELS", str(ROOT / "build" / "wheel" / uuid.uuid4().hex)))
# The last commit that has amp; PyPI does not have it.
APEX = "git+https://github.com/NVIDIA/apex@e13873debc4699d39c6861074b9a3b2a02327f92"
APEX_TRAINERS = ("apex_single", "apex_ddp", "apex_horovod")
# By their schema, the files of CI systems: our own, and those to copy.
CI_FILES = {
    "github-workflows": (*map(str, sorted(ROOT.glob(".github/workflows/*.yml"))), "docs/ci/github.yml"),
    "github-actions": ("action.yml",),
    "gitlab-ci": ("--data-transform", "gitlab-ci", "docs/ci/gitlab.yml"),
}
# What tests/browser checks pages with.
AXE = "axe-core@4.14.1"
# Rounds of a comparison, after one that compiles what is imported.
ROUNDS = 2
# Relative, because a report shows the command that made it.
BUILT = Path("build", "reports")
# What the session `watch` has beside torch. Scripts that need another framework run in the session of that one.
WATCHED = ("accelerate", "lightning", "horovod")
# What has an adapter; the extra has the same name.
FRAMEWORKS = {
    "accelerate": "Hugging Face Accelerate",
    "lightning": "Lightning's Trainer",
    "determined": "Determined's PyTorchTrial, under Horovod too",
    "ray-train": "Ray Train's TorchTrainer",
    "deepspeed": "DeepSpeed's ZeRO, stages 0 to 3",
    "ignite": "PyTorch-Ignite's supervised trainer",
    "mmengine": "MMEngine's Runner",
    "transformers": "Hugging Face transformers' Trainer",
    "speechbrain": "SpeechBrain's Brain",
    "fabric": "Lightning Fabric",
    "keras": "Keras 3 on torch",
    "skorch": "skorch's NeuralNet, with Accelerate's mixin",
    "poutyne": "Poutyne's Model",
    "trl": "TRL's SFTTrainer",
    "sentence-transformers": "Sentence Transformers' trainer",
    "funasr": "FunASR's Trainer",
    "torchtnt": "TorchTNT's AutoUnit",
    "fastai": "fastai's Learner",
    "pytorch-accelerated": "pytorch-accelerated's Trainer",
}
# The fast ones, which a plain `nox` has.
BY_DEFAULT = ("accelerate", "lightning", "determined", "ray-train")
# Which adapters are compared with their published reports.
VERDICTS = ROOT / "tests" / "frameworks" / "test_verdicts.py"
# PyPI's torchaudio is built for CUDA: its libraries do not load beside a torch without, and nothing here needs them.
WITH_TORCHAUDIO = {"speechbrain", "funasr"}
FURTHER = {"determined": ("horovod",)}


class Report(NamedTuple):
    """A published report: the extras to install, what `conformance run` is given, and whether it lists the mutants."""

    arguments: tuple[str, ...]
    extras: tuple[str, ...] = ()
    mutants: bool = False


REPORTS = {
    "single": Report(("--backend", "single")),
    "ddp": Report(("--backend", "ddp"), ("horovod",), mutants=True),
    "horovod": Report(("--backend", "horovod"), ("horovod",)),
    "point-to-point": Report(("--backend", "parameter-server", "--backend", "ring", "--backend", "ring-gather")),
    "sharded": Report(("--backend", "fsdp2", "--backend", "zero-redundancy")),
    **{
        name: Report((f"conformance.frameworks.{name.replace('-', '_')}",), (name, *FURTHER.get(name, ())))
        for name in FRAMEWORKS
    },
    # A run by itself takes few of the cases that start a framework's processes.
    "ray-train": Report(("conformance.frameworks.ray_train", "--thorough"), ("ray-train",)),
    # A trainer for each stage of ZeRO.
    "deepspeed": Report(tuple(f"conformance.frameworks.deepspeed:zero_{stage}" for stage in range(4)), ("deepspeed",)),
}


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Sessions that run at the same time do this one after the other."""
    lock = ROOT / "build" / f"{what}.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built_wheel(session: nox.Session) -> Path:
    """The wheel of the checkout as it is in this run of nox."""
    with one_at_a_time("wheel"):
        if not any(WHEELS.glob("*.whl")):
            shutil.rmtree(WHEELS.parent, ignore_errors=True)
            command = ["pip", "wheel", "--quiet", "--no-deps", "--build-constraint", str(CONSTRAINTS)]
            session.run_install(*command, "--wheel-dir", str(WHEELS), str(ROOT))
        [wheel] = WHEELS.glob("*.whl")
    return wheel


def link(distribution: str, environment: Path) -> None:
    """Hard-link a distribution from a neighbouring environment, if one has it, so that pip finds it installed.

    Unpacking torch, and compiling it on its first import, takes longer than everything else in an environment together.
    """
    [site] = environment.glob("lib/python*/site-packages")
    pattern = f"{distribution}-*.dist-info/RECORD"
    found = environment.parent.glob(f"*/{site.relative_to(environment)}/{pattern}")
    records = sorted(found, key=lambda record: (record.parents[1] / distribution / "__pycache__").exists())
    if not records or any(site.glob(pattern)):
        return
    theirs = records[-1].parents[1]
    paths = [Path(row[0]) for row in csv.reader(records[-1].read_text().splitlines())]
    for path in paths:
        if path.parts[0] == "..":
            script = (theirs / path).read_text()
            (site / path).write_text(script.replace(str(theirs.parents[2]), str(environment)))
            shutil.copymode(theirs / path, site / path)
        elif len(path.parts) == 1:
            (site / path).unlink(missing_ok=True)
            os.link(theirs / path, site / path)
    # What was compiled there stands beside it, and in no record. The record comes last: it says that all is there.
    folders = {path.parts[0] for path in paths if len(path.parts) > 1 and path.parts[0] != ".."}
    for folder in sorted(folders, key=lambda folder: folder == records[-1].parent.name):
        shutil.rmtree(site / folder, ignore_errors=True)
        # Another session may be compiling there, into files of other names first.
        passing = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(theirs / folder, site / folder, copy_function=os.link, ignore=passing)


def install_wheel(session: nox.Session, *extras: str) -> None:
    """Install the built wheel with what it and its extras depend on; with the extra horovod, Horovod too."""
    wheel = built_wheel(session)
    extra = f"[{','.join(extras)}]" if extras else ""
    [site] = Path(session.virtualenv.location).absolute().glob("lib/python*/site-packages")
    # So that one session unpacks torch, and one builds Horovod, and the next ones have them.
    with one_at_a_time("install"):
        for distribution in ("torch", "ray") if {"ray", "ray-train"}.intersection(extras) else ("torch",):
            link(distribution, Path(session.virtualenv.location).absolute())
        if any(site.glob("trainer_conformance-*.dist-info")):
            # A kept environment holds an older build of the same version.
            session.run_install("pip", "uninstall", "--quiet", "--yes", "trainer-conformance")
        # Compiling all of torch takes longer than unpacking it, and what a session imports is compiled then.
        session.install("--no-compile", "-c", str(CONSTRAINTS), f"{wheel}{extra}")
        if "horovod" in extras:
            session.run_install("python", str(ROOT / "tools" / "horovod_wheel.py"), "--install")
    if WITH_TORCHAUDIO.intersection(extras):
        for library in site.glob("torchaudio/lib/*.so"):
            library.unlink()
    if "test" in extras:
        # For `fixtures`. It comes last on the import path, so that `conformance` stays the wheel's.
        (site / "checkout.pth").write_text(f"{ROOT}\n")
    # Where a session runs nox, that has a wheel of its own.
    session.env["CONFORMANCE_WHEELS"] = None
    # Where this is set, as in many containers, every interpreter would compile all of torch for itself.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    # Keeps the working directory, and with it the checkout, off every interpreter's import path.
    session.env["PYTHONSAFEPATH"] = "1"


def conformance_run(session: nox.Session, *arguments: str) -> None:
    """`conformance run`, with nox's arguments and where nox was called; without any, into build/reports."""
    if session.posargs:
        session.chdir(session.invoked_from)
        session.run("conformance", "run", *arguments, *session.posargs)
    else:
        session.run("conformance", "run", *arguments, "--output", str(BUILT / session.name))


def run_findings(session: nox.Session, name: str) -> None:
    """The scripts of a framework's findings, each of which has to exit with 1."""
    scripts = sorted(map(str, ROOT.glob(f"reports/findings/{name.replace('-', '_')}_*.py")))
    session.run("python", str(ROOT / "tools" / "findings.py"), *scripts)


def framework(session: nox.Session) -> None:
    """`conformance run` with nox's arguments, for a framework's adapter; without any, the adapter's tests.

    The tests run its cases too, and know which of them do not conform. Scripts show the same without this package.
    """
    install_wheel(session, "test", session.name, *FURTHER.get(session.name, ()))
    module = session.name.replace("-", "_")
    if session.posargs:
        conformance_run(session, f"conformance.frameworks.{module}")
    else:
        own = ROOT / "tests" / "frameworks" / f"test_{module}.py"
        tests = [str(own)] if own.exists() else []
        if f'"{module}"' in VERDICTS.read_text():
            tests.append(f"{VERDICTS}::test_verdicts_are_those_of_the_published_report[{module}]")
        session.run("pytest", *tests)
        if session.name not in (*WATCHED, "deepspeed") and (scripts := watched_with(module)):
            session.run("python", "-m", "fixtures.watched", *scripts)
        run_findings(session, session.name)


def watched_with(package: str) -> list[str]:
    """The scripts that `conformance watch` is tried on and that need this package."""
    needs = f"\n# Needs: {package}\n"
    return [path.stem for path in sorted(ROOT.glob("fixtures/scripts/*/*.py")) if needs in path.read_text()]


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format; types, strictly."""
    install_wheel(session, "lint", "accelerate", "lightning", "determined", "ray")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "--strict", "benchmarks", "conformance", "tools")
    for schema, files in CI_FILES.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    workflows = (*CI_FILES["github-workflows"], *CI_FILES["github-actions"])
    session.run("zizmor", "--offline", "--quiet", "--min-severity", "medium", *workflows)
    session.run("hadolint", "Dockerfile")


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/site, with the published reports; its links lead somewhere, and it loads nothing else."""
    install_wheel(session, "docs")
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    session.run("mkdocs", "build", "--quiet")
    session.run("python", str(ROOT / "tools" / "links.py"), "build/site")


@nox.session
def package(session: nox.Session) -> None:
    """What users install and copy: the workflow of a release, jobs for CI, the container, commands for agents."""
    install_wheel(session, "test")
    session.install("-c", str(CONSTRAINTS), "build", "twine")
    session.run("pytest", "tests/publishing")


@nox.session
def single(session: nox.Session) -> None:
    """One process: sample by sample, batched, accumulated."""
    install_wheel(session)
    conformance_run(session, "--backend", "single")


@nox.session
def ddp(session: nox.Session) -> None:
    """DistributedDataParallel over gloo."""
    install_wheel(session)
    conformance_run(session, "--backend", "ddp")


@nox.session
def horovod(session: nox.Session) -> None:
    """Horovod over gloo; builds Horovod's wheel if the cache has none."""
    install_wheel(session, "horovod")
    conformance_run(session, "--backend", "horovod")


@nox.session
def fsdp2(session: nox.Session) -> None:
    """FSDP2 over gloo, fully sharded and hybrid."""
    install_wheel(session)
    conformance_run(session, "--backend", "fsdp2")


@nox.session(name="zero-redundancy")
def zero_redundancy(session: nox.Session) -> None:
    """ZeroRedundancyOptimizer beside DistributedDataParallel."""
    install_wheel(session)
    conformance_run(session, "--backend", "zero-redundancy")


@nox.session(name="parameter-server")
def parameter_server(session: nox.Session) -> None:
    """A parameter server over gloo, rank by rank."""
    install_wheel(session)
    conformance_run(session, "--backend", "parameter-server")


@nox.session
def ring(session: nox.Session) -> None:
    """Ring all-reduce over gloo: reduce-scatter and all-gather, from neighbour to neighbour."""
    install_wheel(session)
    conformance_run(session, "--backend", "ring")


@nox.session(name="ring-gather")
def ring_gather(session: nox.Session) -> None:
    """Whole gradients accumulated around a ring over gloo."""
    install_wheel(session)
    conformance_run(session, "--backend", "ring-gather")


@nox.session(default=False)
def apex(session: nox.Session) -> None:
    """NVIDIA apex, on a machine with a GPU; elsewhere it says what is missing, and fails, as nothing was judged."""
    install_wheel(session, "horovod")
    if shutil.which("nvidia-smi") is not None:
        session.install("-c", str(CONSTRAINTS), "packaging", "setuptools", "wheel")
        session.install("-c", str(CONSTRAINTS), "--no-build-isolation", APEX)
    conformance_run(session, *(() if session.posargs else APEX_TRAINERS))


@nox.session
def ray(session: nox.Session) -> None:
    """DistributedSGD on Ray actors; without arguments, check that it conforms, and that a cluster runs any trainer."""
    framework(session)
    if not session.posargs:
        session.run("pytest", "tests/frameworks/test_ray_launcher.py")


for name, what in FRAMEWORKS.items():
    framework.__doc__ = f"{what}; without arguments, check for its known verdicts."
    nox.session(framework, name=name, default=name in BY_DEFAULT)


@nox.session(name="deepspeed-further", default=False)
def deepspeed_further(session: nox.Session) -> None:
    """Minutes more of DeepSpeed: what its ranks send, mistakes made with it and by it, and scripts under a watch."""
    install_wheel(session, "test", "deepspeed")
    session.run("pytest", *(f"tests/frameworks/test_deepspeed_{what}.py" for what in ("traffic", "mistakes")))
    session.run("python", "-m", "fixtures.watched", *watched_with("deepspeed"))


@nox.session(default=False)
@nox.parametrize("report", [nox.param(name, id=name) for name in REPORTS])
def reports(session: nox.Session, report: str) -> None:
    """The published reports: run, rendered, and put on the page; `nox -s "reports(ddp)"` makes one again."""
    install_wheel(session, "test", *REPORTS[report].extras)
    folder = BUILT / "published" / report
    # What a rank prints is in its results, and a warning names the file that it comes from.
    session.env["PYTHONWARNINGS"] = "ignore"
    command = ("conformance", "run", *REPORTS[report].arguments, "--output", str(folder))
    session.run(*command, success_codes=(0, 1))
    published = ROOT / "reports" / report
    shutil.copy(folder / "conformance-results.jsonl", published.with_suffix(".jsonl"))
    if REPORTS[report].mutants:
        session.run("python", "-m", "fixtures.kill", str(published.with_suffix(".jsonl")))
    session.run("conformance", "report", f"{published}.jsonl", "--output", f"{published}.html", success_codes=(0, 1))
    session.run("python", str(ROOT / "tools" / "reports_page.py"))


@nox.session(default=False)
@nox.parametrize("name", [nox.param(name, id=name) for name in FRAMEWORKS])
def findings(session: nox.Session, name: str) -> None:
    """The scripts of all findings, each of which has to exit with 1; `nox -s "findings(accelerate)"` runs some."""
    install_wheel(session, name, *FURTHER.get(name, ()))
    run_findings(session, name)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Reports in Chromium, which has to be on PATH as npm has: axe-core finds nothing, and nothing is too wide."""
    install_wheel(session, "test")
    folder = Path(session.create_tmp())
    session.run("npm", "pack", "--silent", "--pack-destination", str(folder), AXE, external=True)
    [archive] = folder.glob("axe-core-*.tgz")
    shutil.unpack_archive(archive, folder)
    session.run("pytest", "tests/browser", *session.posargs, env={"AXE": str(folder / "package" / "axe.min.js")})


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Random correct programs, which must pass, and random illegal edits, which must be noticed."""
    install_wheel(session, "test", "horovod")
    session.run("python", "-m", "fixtures.programs", *session.posargs)


@nox.session(default=False)
def reproduced(session: nox.Session) -> None:
    """Scripts by `conformance repro` for mutants of each kind, and again with the right trainer; or for those named."""
    install_wheel(session, "test", "horovod")
    session.run("python", "-m", "fixtures.reproduced", *session.posargs)


@nox.session(default=False)
def history(session: nox.Session) -> None:
    """Releases of frameworks that shipped a bug, which must be caught, and those that repaired it; or those named."""
    install_wheel(session, "test")
    session.run("python", "-m", "fixtures.history", *session.posargs)


@nox.session(default=False)
def watch(session: nox.Session) -> None:
    """Training scripts, right and wrong, plainly and under `conformance watch`: no false alarm, and no bug missed."""
    install_wheel(session, "test", *WATCHED)
    session.run("python", "-m", "fixtures.watched_scripts", *session.posargs)
    session.run("python", "-m", "fixtures.watched", *session.posargs)


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Full disks, closed descriptors, limits, signals, patched modules, hostile files: verdict, code, what is left."""
    install_wheel(session, "test")
    session.run("python", "-m", "fixtures.faults", *session.posargs)


@nox.session(name="torch-newest", default=False)
def torch_newest(session: nox.Session) -> None:
    """The default run with the newest torch of PyPI, a CUDA build, and its time next to that of the pinned torch."""
    wheel = built_wheel(session)
    newest = Path(session.virtualenv.location).absolute()
    pinned = newest.with_name(f"{session.name}-pinned")
    environments = {"newest": newest, "pinned": pinned}
    if not pinned.exists():
        session.run("python", "-m", "venv", str(pinned))
    session.run(str(pinned / "bin" / "pip"), "install", "--quiet", "-c", str(CONSTRAINTS), str(wheel), external=True)
    all_but_torch = Path(session.create_tmp(), "constraints.txt")
    all_but_torch.write_text("".join(line for line in CONSTRAINTS.open() if not line.startswith("torch==")))
    session.install("--upgrade", "-c", str(all_but_torch), "torch")
    session.install("-c", str(all_but_torch), str(wheel))
    for environment in environments.values():
        pip = (str(environment / "bin" / "pip"), "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
        session.run(*pip, external=True)
    session.env["PYTHONSAFEPATH"] = "1"
    seconds: dict[str, list[float]] = {name: [] for name in environments}
    for _ in range(1 + ROUNDS):
        for name, environment in environments.items():
            seconds[name].append(timed_default_run(session, environment, BUILT / session.name / name))
    best = {name: min(times[1:]) for name, times in seconds.items()}
    for name in environments:
        header = header_of(BUILT / session.name / name)
        session.log(f"{name}: torch {header['machine']['torch']}, {best[name]:.1f} s, the best of {ROUNDS}, in turns")
    session.log(f"ratio: {best['newest'] / best['pinned']:.2f}")


@nox.session(name="torch-oldest", python="3.10", default=False)
def torch_oldest(session: nox.Session) -> None:
    """The default run with the oldest torch, the oldest Python and the oldest of what else is needed."""
    wheel = built_wheel(session)
    session.install("-c", str(OLDEST_CONSTRAINTS), str(wheel))
    session.install("--no-deps", "--force-reinstall", str(wheel))
    timed_default_run(session, Path(session.virtualenv.location).absolute(), BUILT / session.name)


def timed_default_run(session: nox.Session, environment: Path, output: Path) -> float:
    """Its seconds. Fails unless every case holds and all ranks were forked."""
    began = time.monotonic()
    command = (str(environment / "bin" / "conformance"), "run", "--backend", "single", "--backend", "ddp")
    session.run(*command, "--output", str(output), external=True)
    seconds = time.monotonic() - began
    # The file leaves out fields that are empty.
    if notes := header_of(output).get("notes"):
        session.error("ranks were not forked: " + " ".join(notes))
    return seconds


def header_of(output: Path) -> dict[str, Any]:
    """The first line of the results file in a folder."""
    with (output / "conformance-results.jsonl").open() as file:
        header: dict[str, Any] = json.loads(file.readline())
    return header


@nox.session(allow_parallel=False)
def tests(session: nox.Session) -> None:
    """The harness's own tests, against the installed wheel; with everything installed that they can use."""
    install_wheel(session, "test", "accelerate", "lightning", "horovod")
    session.env["CONFORMANCE_WHEEL"] = str(built_wheel(session))
    # Stealing: what takes longest, runs of the command, stands in few files that one process would do alone at the end.
    # One more than the cores, as much of the time is waiting: for an import, for ranks that wait for each other.
    session.run("pytest", "-n", "3", "--dist", "worksteal", *session.posargs)
