"""The project's checks, one session each. `nox` runs them all, `nox -l` lists them.

A backend's session checks the reference trainers, or a named trainer:
`nox -s ddp -- my_trainer.py`.

Sessions run the built wheel, never the checkout; it is built once per run of nox. A plain `nox` runs two sessions at a
time, each in its own process, because installs and checks seldom use more than one core; `tests` does, and runs alone.
Named sessions run one after the other, and print their output at once.
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

# Needed for parallel sessions.
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
# The wheel of this run. Session processes inherit its path from their parent.
WHEELS = Path(os.environ.setdefault("CONFORMANCE_WHEELS", str(ROOT / "build" / "wheel" / uuid.uuid4().hex)))
# The last commit with amp; PyPI does not have it.
APEX = "git+https://github.com/NVIDIA/apex@e13873debc4699d39c6861074b9a3b2a02327f92"
APEX_TRAINERS = ("apex_single", "apex_ddp", "apex_horovod")
# Files of CI systems, by their schema: our own, and those to copy.
CI_FILES = {
    "github-workflows": (*map(str, sorted(ROOT.glob(".github/workflows/*.yml"))), "docs/ci/github.yml"),
    "github-actions": ("action.yml",),
    "gitlab-ci": ("--data-transform", "gitlab-ci", "docs/ci/gitlab.yml"),
}
# Used by tests/browser to check pages.
AXE = "axe-core@4.14.1"
# Rounds of a comparison, after one that compiles imports.
ROUNDS = 2
# Relative, because a report shows the command that made it.
BUILT = Path("build", "reports")
# Further packages of the session `watch`. Scripts for another framework run in that framework's session.
WATCHED = ("accelerate", "lightning", "horovod")
# Frameworks with an adapter; the extra has the same name.
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
    "monai": "MONAI's SupervisedTrainer",
    "catalyst": "Catalyst's SupervisedRunner",
    "pytorch-metric-learning": "pytorch-metric-learning's MetricLossOnly",
}
# The fast ones, which a plain `nox` runs.
BY_DEFAULT = ("accelerate", "lightning", "determined", "ray-train")
# Compares adapters with their published reports.
VERDICTS = ROOT / "tests" / "frameworks" / "test_verdicts.py"
# PyPI's torchaudio is built for CUDA: its libraries do not load with a CPU build of torch, and nothing here needs them.
WITH_TORCHAUDIO = {"speechbrain", "funasr"}
# Newer releases of pip refuse the metadata of Catalyst's last release.
WITH_OLD_PIP = {"catalyst"}
FURTHER = {"determined": ("horovod",)}


class Report(NamedTuple):
    """A published report: the arguments of `conformance run`, the extras to install, and whether it lists mutants."""

    arguments: tuple[str, ...]
    extras: tuple[str, ...] = ()
    mutants: bool = False


REPORTS = {
    "single": Report(("--backend", "single")),
    "ddp": Report(("--backend", "ddp"), ("horovod", "accelerate", "lightning"), mutants=True),
    "horovod": Report(("--backend", "horovod"), ("horovod",)),
    "point-to-point": Report(("--backend", "parameter-server", "--backend", "ring", "--backend", "ring-gather")),
    "sharded": Report(("--backend", "fsdp2", "--backend", "zero-redundancy")),
    **{
        name: Report((f"conformance.frameworks.{name.replace('-', '_')}",), (name, *FURTHER.get(name, ())))
        for name in FRAMEWORKS
    },
    # A default run has few of the cases that start a framework's processes.
    "ray-train": Report(("conformance.frameworks.ray_train", "--thorough"), ("ray-train",)),
    # A trainer for each stage of ZeRO.
    "deepspeed": Report(tuple(f"conformance.frameworks.deepspeed:zero_{stage}" for stage in range(4)), ("deepspeed",)),
}


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """A lock that keeps parallel sessions from doing this at the same time."""
    lock = ROOT / "build" / f"{what}.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built_wheel(session: nox.Session) -> Path:
    """The wheel of the checkout, built once in this run of nox."""
    with one_at_a_time("wheel"):
        if not any(WHEELS.glob("*.whl")):
            shutil.rmtree(WHEELS.parent, ignore_errors=True)
            command = ["pip", "wheel", "--quiet", "--no-deps", "--build-constraint", str(CONSTRAINTS)]
            session.run_install(*command, "--wheel-dir", str(WHEELS), str(ROOT))
        [wheel] = WHEELS.glob("*.whl")
    return wheel


def link(distribution: str, environment: Path) -> None:
    """Hard-links a distribution from a neighbouring environment, if one has it, so pip finds it installed.

    Unpacking torch, and compiling it on first import, takes longer than everything else in an environment together.
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
    # Compiled files are next to it, and in no record. The record comes last: it marks the copy as complete.
    folders = {path.parts[0] for path in paths if len(path.parts) > 1 and path.parts[0] != ".."}
    for folder in sorted(folders, key=lambda folder: folder == records[-1].parent.name):
        shutil.rmtree(site / folder, ignore_errors=True)
        # Another session may be compiling there, into temporary files first.
        passing = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(theirs / folder, site / folder, copy_function=os.link, ignore=passing)


def install_wheel(session: nox.Session, *extras: str) -> None:
    """Installs the built wheel with its dependencies and those of its extras; with the extra horovod, also Horovod."""
    wheel = built_wheel(session)
    extra = f"[{','.join(extras)}]" if extras else ""
    [site] = Path(session.virtualenv.location).absolute().glob("lib/python*/site-packages")
    # One session unpacks torch, one builds Horovod, and later ones reuse them.
    with one_at_a_time("install"):
        for distribution in ("torch", "ray") if {"ray", "ray-train"}.intersection(extras) else ("torch",):
            link(distribution, Path(session.virtualenv.location).absolute())
        if any(site.glob("trainer_conformance-*.dist-info")):
            # A reused environment has an older build of the same version.
            session.run_install("pip", "uninstall", "--quiet", "--yes", "trainer-conformance")
        if WITH_OLD_PIP.intersection(extras):
            session.install("-c", str(CONSTRAINTS), "pip<24.1")
        # Compiling all of torch takes longer than unpacking it; imports are compiled on use.
        session.install("--no-compile", "-c", str(CONSTRAINTS), f"{wheel}{extra}")
        if "horovod" in extras:
            session.run_install("python", str(ROOT / "tools" / "horovod_wheel.py"), "--install")
    if WITH_TORCHAUDIO.intersection(extras):
        for library in site.glob("torchaudio/lib/*.so"):
            library.unlink()
    if "test" in extras:
        # For `fixtures`. Last on the import path, so `conformance` stays the wheel's.
        (site / "checkout.pth").write_text(f"{ROOT}\n")
    # A nox run inside a session builds its own wheel.
    session.env["CONFORMANCE_WHEELS"] = None
    # If set, as in many containers, every interpreter would compile all of torch again.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    # Keeps the working directory, and so the checkout, off every interpreter's import path.
    session.env["PYTHONSAFEPATH"] = "1"


def conformance_run(session: nox.Session, *arguments: str) -> None:
    """Runs `conformance run` with nox's arguments in nox's folder; without arguments, into build/reports."""
    if session.posargs:
        session.chdir(session.invoked_from)
        session.run("conformance", "run", *arguments, *session.posargs)
    else:
        session.run("conformance", "run", *arguments, "--output", str(BUILT / session.name))


def run_findings(session: nox.Session, name: str) -> None:
    """Runs the scripts of a framework's findings; each must exit with 1."""
    scripts = sorted(map(str, ROOT.glob(f"reports/findings/{name.replace('-', '_')}_*.py")))
    session.run("python", str(ROOT / "tools" / "findings.py"), *scripts)


def framework(session: nox.Session) -> None:
    """Runs `conformance run` with nox's arguments, for a framework's adapter; without any, the adapter's tests.

    The tests also run its cases, and know which of them fail. Scripts show the same without this package.
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
    """The scripts for trying `conformance watch` that need this package."""
    needs = f"\n# Needs: {package}\n"
    return [path.stem for path in sorted(ROOT.glob("fixtures/scripts/*/*.py")) if needs in path.read_text()]


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format; strict types; plain English; the schemas of CI files; fragments of the changelog."""
    install_wheel(session, "lint", "accelerate", "lightning", "determined", "ray")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "--strict", "benchmarks", "conformance", "tools")
    session.run("python", str(ROOT / "tools" / "prose.py"))
    # Switched off, as proselint also reads code, tables and headings: repeated words, typography, and a rule on "-ly-",
    # which case ids such as butterfly-w2 match.
    pages = ("README.md", "CONTRIBUTING.md", *map(str, sorted(ROOT.glob("docs/*.md"))))
    session.run("proselint", "check", "--config", "tools/proselint.json", *pages)
    for schema, files in CI_FILES.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    session.run("towncrier", "build", "--draft", "--version", "next")
    workflows = (*CI_FILES["github-workflows"], *CI_FILES["github-actions"])
    session.run("zizmor", "--offline", "--quiet", "--min-severity", "medium", *workflows)
    session.run("hadolint", "Dockerfile")


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/site, with the published reports: no broken link, and nothing is loaded from elsewhere."""
    # The pages of laws run the wrong code of fixtures.
    install_wheel(session, "docs", "test")
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
    """ZeroRedundancyOptimizer with DistributedDataParallel."""
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
    """NVIDIA apex, on a machine with a GPU; elsewhere it reports what it needs, and fails, as nothing was judged."""
    install_wheel(session, "horovod")
    if shutil.which("nvidia-smi") is not None:
        session.install("-c", str(CONSTRAINTS), "packaging", "setuptools", "wheel")
        session.install("-c", str(CONSTRAINTS), "--no-build-isolation", APEX)
    conformance_run(session, *(() if session.posargs else APEX_TRAINERS))


@nox.session
def ray(session: nox.Session) -> None:
    """DistributedSGD on Ray actors; without arguments, checks that it conforms, and that a cluster runs any trainer."""
    framework(session)
    if not session.posargs:
        session.run("pytest", "tests/frameworks/test_ray_launcher.py")


for name, what in FRAMEWORKS.items():
    framework.__doc__ = f"{what}; without arguments, checks for its known verdicts."
    nox.session(framework, name=name, default=name in BY_DEFAULT)


@nox.session(name="deepspeed-further", default=False)
def deepspeed_further(session: nox.Session) -> None:
    """More of DeepSpeed, in minutes: its ranks' traffic, bugs made with it and by it, and scripts under a watch."""
    install_wheel(session, "test", "deepspeed")
    session.run("pytest", *(f"tests/frameworks/test_deepspeed_{what}.py" for what in ("traffic", "mistakes")))
    session.run("python", "-m", "fixtures.watched", *watched_with("deepspeed"))


@nox.session(default=False)
@nox.parametrize("report", [nox.param(name, id=name) for name in REPORTS])
def reports(session: nox.Session, report: str) -> None:
    """The published reports: run, rendered, and put on the page; `nox -s "reports(ddp)"` updates one."""
    install_wheel(session, "test", *REPORTS[report].extras)
    folder = BUILT / "published" / report
    # A rank's output is in its results, and a warning names its file.
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
    """The scripts of all findings; each must exit with 1; `nox -s "findings(accelerate)"` runs some."""
    install_wheel(session, name, *FURTHER.get(name, ()))
    run_findings(session, name)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Reports in Chromium (needs it and npm on PATH): axe-core finds nothing, and nothing is too wide."""
    install_wheel(session, "test")
    folder = Path(session.create_tmp())
    session.run("npm", "pack", "--silent", "--pack-destination", str(folder), AXE, external=True)
    [archive] = folder.glob("axe-core-*.tgz")
    shutil.unpack_archive(archive, folder)
    session.run("pytest", "tests/browser", *session.posargs, env={"AXE": str(folder / "package" / "axe.min.js")})


@nox.session(default=False, tags=["thorough"])
def fuzz(session: nox.Session) -> None:
    """Random correct programs, which must pass, and random illegal edits, which must be noticed."""
    install_wheel(session, "test", "horovod")
    session.run("python", "-m", "fixtures.programs", *session.posargs)


@nox.session(default=False, tags=["thorough"])
def reproduced(session: nox.Session) -> None:
    """Scripts by `conformance repro` for mutants of each kind, again with the correct trainer; or for those named."""
    install_wheel(session, "test", "horovod")
    session.run("python", "-m", "fixtures.reproduced", *session.posargs)


@nox.session(default=False, tags=["thorough"])
def history(session: nox.Session) -> None:
    """Releases that shipped a bug must be caught, and those that fixed it pass: the pairs of today, or those named."""
    install_wheel(session, "test")
    session.run("python", "-m", "fixtures.history", *session.posargs)


@nox.session(default=False, tags=["thorough"])
def watch(session: nox.Session) -> None:
    """Training scripts, correct and wrong, with and without `conformance watch`: no false alarm, and no bug missed."""
    install_wheel(session, "test", *WATCHED)
    session.run("python", "-m", "fixtures.watched_scripts", *session.posargs)
    session.run("python", "-m", "fixtures.watched", *session.posargs)


@nox.session(default=False, tags=["thorough"])
def faults(session: nox.Session) -> None:
    """Full disks, closed descriptors, limits, signals, patched modules, hostile files: verdict, code, leftovers."""
    install_wheel(session, "test")
    session.run("python", "-m", "fixtures.faults", *session.posargs)


@nox.session(default=False, tags=["thorough"])
def rows(session: nox.Session) -> None:
    """All rows of long tables, such as all mutants; `tests` runs a seventh of them each day."""
    install_wheel(session, "test", "accelerate", "lightning", "horovod")
    session.run("pytest", "-n", "3", "-m", "in_turn", "--turn", "all", *session.posargs)


@nox.session(name="torch-newest", default=False)
def torch_newest(session: nox.Session) -> None:
    """The default run with PyPI's newest torch, a CUDA build, and its time compared with that of the pinned torch."""
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
    """The default run with the oldest supported torch, Python and other requirements."""
    wheel = built_wheel(session)
    session.install("-c", str(OLDEST_CONSTRAINTS), str(wheel))
    session.install("--no-deps", "--force-reinstall", str(wheel))
    timed_default_run(session, Path(session.virtualenv.location).absolute(), BUILT / session.name)


def timed_default_run(session: nox.Session, environment: Path, output: Path) -> float:
    """Returns its seconds. Fails unless every case passes and all ranks were forked."""
    began = time.monotonic()
    command = (str(environment / "bin" / "conformance"), "run", "--backend", "single", "--backend", "ddp")
    session.run(*command, "--output", str(output), external=True)
    seconds = time.monotonic() - began
    # The file omits empty fields.
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
    # Work stealing: the slowest tests, runs of the command, are in few files that one process would run alone.
    # One more process than cores, because tests often wait: for an import, for ranks that wait for each other.
    session.run("pytest", "-n", "3", "--dist", "worksteal", "--durations", "60", *session.posargs)
