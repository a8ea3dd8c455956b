"""Arguments of `@trainer`: valid ones, and the errors for others."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import subprocess
import sys

import pytest

from conformance.adapter.backends import BACKENDS
from conformance.adapter.declaration import Declaration, declared, trainer
from conformance.workloads.precision import PRECISIONS


def test_a_decorated_function_stays_the_function_it_was():
    """The declaration is attached; nothing is wrapped."""

    def train(task):
        return task

    decorated = trainer(backends=["ddp"], precisions=["fp16"])(train)

    assert decorated is train
    assert train(3) == 3
    declaration = declared(train)
    assert declaration is not None
    assert declaration.backends == ("ddp",)
    assert declaration.precisions == ("fp16",)


def test_without_arguments_the_defaults_are_declared():
    """Plain `@trainer` is also a declaration."""

    @trainer
    def train(task):
        return None

    assert declared(train) == Declaration()


@pytest.mark.parametrize(("field", "names"), [("backends", BACKENDS), ("precisions", PRECISIONS)])
def test_the_documentation_names_all_that_can_be_declared(field, names):
    """In the docstring of `@trainer`, which an editor shows."""
    paragraph = re.search(rf"^ *{field}: of (.*?)^ *\w+: ", trainer.__doc__, re.DOTALL | re.MULTILINE)[1]
    assert set(re.findall(r'"([^"]+)"', paragraph)) == set(names)


def test_undecorated_objects_declare_nothing():
    assert declared(len) is None
    assert declared(3) is None


def test_a_declaration_survives_json():
    """It passes between processes as plain data."""
    declaration = Declaration(backends=("single", "ddp"), world_sizes=(2,), requires=("numpy",), name="mine")
    assert Declaration.from_dict(json.loads(json.dumps(declaration.to_dict()))) == declaration


def test_repeated_names_count_once():
    assert Declaration(backends=("ddp", "ddp")).backends == ("ddp",)


@pytest.mark.parametrize(
    ("declares", "message"),
    [
        (
            {"backends": ["dpp"]},
            (
                "unknown backend 'dpp' (allowed: single, ddp, horovod, fsdp2, zero-redundancy, deepspeed, "
                "parameter-server, ring, ring-gather, ray, ray-train); did you mean 'ddp'?"
            ),
        ),
        (
            {"precisions": ["float32"]},
            "unknown precision 'float32' (allowed: fp64, fp32, bf16, fp16, fp16-compression, apex-O1)",
        ),
        (
            {"layouts": ["batch"]},
            "unknown layout 'batch' (allowed: samples, batched, accumulated); did you mean 'batched'?",
        ),
        ({"losses": ["sum"]}, "unknown loss 'sum' (allowed: mean, weighted)"),
        ({"optimizers": ["adam"]}, "unknown optimizer 'adam' (allowed: sgd, adamw, adagrad); did you mean 'adamw'?"),
        ({"optimizers": []}, "optimizers is empty; name at least one of sgd, adamw, adagrad"),
        ({"clips": ["norms"]}, "unknown clip 'norms' (allowed: norm, value); did you mean 'norm'?"),
        (
            {"backends": "ddp"},
            "backends takes a list of names such as backends=['ddp'], not 'ddp'",
        ),
        (
            {"backends": []},
            (
                "backends is empty; name at least one of single, ddp, horovod, fsdp2, zero-redundancy, "
                "deepspeed, parameter-server, ring, ring-gather, ray, ray-train"
            ),
        ),
        ({"backends": [1]}, "backends takes names, not 1"),
        ({"backends": [["ddp"]]}, "backends takes names, not ['ddp']"),
        ({"world_sizes": [[2]]}, "world_sizes takes whole numbers from 2 on, not [2]"),
        ({"world_sizes": [1]}, "world_sizes takes whole numbers from 2 on, not 1"),
        ({"accumulations": [2.5]}, "accumulations takes whole numbers from 2 on, not 2.5"),
        ({"world_sizes": 2}, "world_sizes takes a list of whole numbers such as world_sizes=[2, 4], not 2"),
        (
            {"parameter_groups": 2},
            "parameter_groups takes a list of whole numbers such as parameter_groups=[1, 2, 3], not 2",
        ),
        ({"name": ""}, "name must be a non-empty string, not ''"),
    ],
)
def test_what_is_unknown_is_refused_in_one_line(declares, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        trainer(**declares)


def test_an_unknown_argument_is_refused():
    with pytest.raises(ValueError, match=r"unknown argument of @trainer 'backend' .*; did you mean 'backends'\?"):
        trainer(backend=["ddp"])


def test_only_a_function_can_be_decorated():
    with pytest.raises(ValueError, match="decorates a function, not 3"):
        trainer(backends=["ddp"])(3)


def test_reading_declarations_imports_no_torch():
    """The front process loads no torch: it would cost seconds, and forks of it would inherit its threads."""
    code = (
        "import sys, conformance, conformance.adapter.loading as loading; conformance.trainer; "
        "loading.reference_names(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_exports_what_an_adapter_needs():
    import conformance
    from conformance.adapter.batches import Batch
    from conformance.adapter.task import Task

    assert (conformance.Batch, conformance.Task, conformance.trainer) == (Batch, Task, trainer)
    assert {"Batch", "Task", "trainer"} <= set(dir(conformance))
    with pytest.raises(AttributeError, match="has no attribute 'tariner'"):
        _ = conformance.tariner


async def asynchronous(task):
    """Trains when it is awaited."""


def generator(task):
    yield


async def asynchronous_generator(task):
    yield


class Callable:
    async def __call__(self, task):
        """Trains when it is awaited."""


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (asynchronous, "asynchronous is an async function"),
        (generator, "generator is a generator function"),
        (asynchronous_generator, "asynchronous_generator is a generator function"),
        (functools.partial(asynchronous), "it is an async function"),
        (Callable(), "it is an async function"),
    ],
)
def test_a_function_whose_call_runs_nothing_is_refused(function, kind):
    with pytest.raises(ValueError, match=f"{kind}: calling it runs nothing of its body; write a plain `def ") as caught:
        trainer(function)
    assert "\n" not in str(caught.value)


def test_a_function_that_runs_a_coroutine_is_a_trainer():
    @functools.wraps(asynchronous)
    def run(task):
        asyncio.run(asynchronous(task))

    assert declared(trainer(run)) is not None


@pytest.mark.parametrize("function", [print, [].append, functools.partial(print).__call__])
def test_what_cannot_be_marked(function):
    with pytest.raises(ValueError, match=r"cannot mark .*: it takes no attributes; write a function that calls it"):
        trainer()(function)
