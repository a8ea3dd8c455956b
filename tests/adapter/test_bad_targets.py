"""One clear line for each thing that can be wrong with a target."""

from __future__ import annotations

import pytest

from conformance.adapter.loading import MissingRequirement, TrainerError, load, missing_requirements

from .sources import ONE, TWO


def message(target: str) -> str:
    """What `load` says against `target`: always one line."""
    with pytest.raises(TrainerError) as refused:
        load(target)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_missing_file(write):
    write("my_trainer.py", ONE)
    assert message("my_trianer.py") == "my_trianer.py: no such file; did you mean my_trainer.py?"
    assert message("nowhere/my_trainer.py") == "nowhere/my_trainer.py: no such file (nor a folder nowhere)"


def test_not_a_python_file(write):
    write("notes/a.txt", "")
    assert message("notes/a.txt") == "notes/a.txt: not a Python file: its name does not end in .py"


@pytest.mark.parametrize("target", ["trainers_of_mine", "trainers_of_mine:train", "./trainers_of_mine", "."])
@pytest.mark.parametrize("init", [[], ["trainers_of_mine/__init__.py"]])
def test_a_folder(write, target, init):
    for file in ["trainers_of_mine/mine.py", *init]:
        write(file, "")
    place = target.partition(":")[0]
    assert message(target) == f"{place}: this is a folder: name a .py file in it, or package.module:function"


def test_a_missing_module(write):
    write("package_of_mine/__init__.py", "")
    write("package_of_mine/mine.py", ONE)
    write("my_trainer.py", ONE)
    assert message("package_of_mine.mien") == "package_of_mine.mien: no such module; did you mean 'mine'?"
    assert message("acumulated") == "acumulated: no such module; did you mean 'accumulated'?"
    assert message("no_such_package.mine") == "no_such_package: no such module"
    assert message("no such thing") == "'no such thing': neither a Python file nor a module's name"
    assert (
        message("my_trainer.train") == "my_trainer.train: my_trainer is not a package; "
        "for a function in it write my_trainer:train"
    )


def test_a_missing_function(write):
    write("several.py", TWO)
    assert message("several.py:trian") == "several.py: no function 'trian' in it; did you mean 'train'?"
    assert message("several.py:zzz") == "several.py: no function 'zzz' in it; it has train, other"


def test_a_function_without_the_decorator(write):
    write("several.py", TWO)
    assert message("several.py:helper") == (
        "several.py: helper is not decorated with @trainer(...): add it from `conformance`"
    )
    assert message("several.py:__name__") == "several.py: __name__ is not a function"


def test_no_trainer_in_a_file(write):
    write("empty.py", "x = 1")
    assert message("empty.py") == (
        "empty.py: no @trainer function in it: decorate your training function with @trainer(...) from `conformance`"
    )


def test_a_trainer_that_is_only_imported(write):
    """It may be there to be called, so it must be asked for."""
    write("defines_one.py", ONE)
    write("imports_one.py", "from defines_one import train as theirs")
    assert message("imports_one.py") == (
        "imports_one.py: no @trainer function is defined in it; to run one that it imports, name imports_one.py:theirs"
    )
    assert load("imports_one.py:theirs")[0](None) == "one"


def test_several_trainers_and_no_name(write):
    write("several.py", TWO)
    said = message("several.py")
    assert said.startswith("several.py: 2 @trainer functions in it, name one of several.py:train, several.py:other, or")
    assert said.endswith("add --trainer all")
    write("made.py", "from conformance import trainer\nfirst, second = map(trainer, (lambda task: 1,) * 2)\n")
    assert message("made.py") == "made.py: 2 @trainer functions in it, name one of made.py:first, made.py:second"


@pytest.mark.parametrize("target", [":train", "my_trainer.py:"])
def test_half_a_target(target):
    assert message(target) == f"{target!r}: write path.py:function or package.module:function"


def test_a_syntax_error(write):
    path = write("broken.py", "def train(task)\n    pass\n")
    assert message("broken.py") == f"{path}:1: SyntaxError: expected ':'"


def test_a_file_that_is_no_text(write):
    write("binary.py", "\0")
    # A ValueError before Python 3.11.4.
    assert message("binary.py") in [
        f"binary.py: {error}: source code string cannot contain null bytes" for error in ("SyntaxError", "ValueError")
    ]


def test_an_error_that_cannot_be_shown(write):
    path = write("raises.py", "class E(Exception):\n    def __str__(self): raise self\nraise E\n")
    assert message("raises.py") == f"{path}:3: E: (its message cannot be shown: E)"


def test_an_error_on_import_names_the_users_line(write):
    """The deepest frame in the user's own file, not the one in the library that raised."""
    path = write("raises.py", "import json\n\ndef read():\n    return json.loads('{')\n\nread()\n" + ONE)
    assert message("raises.py").startswith(f"{path}:4: JSONDecodeError: Expecting property name")


def test_an_error_in_a_sibling_names_the_users_import(write):
    path = write("raises.py", "import sibling_that_raises\n" + ONE)
    write("sibling_that_raises.py", "raise RuntimeError('first\\nsecond')")
    assert message("raises.py") == f"{path}:1: RuntimeError: first second"


def test_a_refused_declaration_names_its_line(write):
    path = write("declares.py", ONE.replace('"ddp"', '"dpp"'))
    assert message("declares.py") == (
        f"{path}:4: ValueError: unknown backend 'dpp' (allowed: single, ddp, horovod, fsdp2, "
        "zero-redundancy, deepspeed, parameter-server, ring, ring-gather, ray, ray-train); did you mean 'ddp'?"
    )


def test_a_module_that_exits(write):
    path = write("leaves.py", "import sys\nsys.exit(3)\n" + ONE)
    assert message("leaves.py") == f"{path}:2: SystemExit: 3"


def test_a_failed_import_can_be_tried_again(write):
    """Nothing half imported stays behind."""
    write("mended.py", "raise RuntimeError")
    message("mended.py")
    write("mended.py", ONE)
    assert load("mended.py")[0](None) == "one"


def test_an_import_that_fails_for_an_undeclared_module(write):
    path = write("needs.py", "import no_such_framework\n" + ONE)
    assert message("needs.py") == (
        f"{path}:1: ModuleNotFoundError: No module named 'no_such_framework'; install it, or fix the import"
    )


def test_an_import_that_fails_in_a_file_of_another_encoding(write):
    path = write("needs.py", "")
    path.write_bytes("# -*- coding: latin-1 -*-\n# caf\xe9\nimport no_such_framework\n".encode("latin-1"))
    assert message("needs.py").startswith(f"{path}:3: ModuleNotFoundError: No module named 'no_such_framework'")


def test_an_import_that_fails_for_a_declared_module(write):
    """The declaration is read from the source: what it lacks is reported as unavailable, not as broken."""
    declares = '@trainer(backends=["ddp"], requires=["no_such_framework"])\n'
    source = ONE.replace('@trainer(backends=["single", "ddp"])\n', declares)
    write("needs.py", "import no_such_framework.torch\n" + source)
    with pytest.raises(MissingRequirement) as missing:
        load("needs.py")
    assert str(missing.value) == "needs no_such_framework: pip install no_such_framework"
    assert missing.value.module == "no_such_framework"
    assert missing.value.declaration.name == "needs"
    assert missing.value.declaration.backends == ("ddp",)


def test_requirements_that_are_not_imported_at_the_top_are_looked_for(write):
    declares = 'requires=["no_such_framework", "no_such.part", "json"])'
    write("needs.py", ONE.replace('"ddp"])', f'"ddp"], {declares}'))
    _, declaration = load("needs.py")
    assert missing_requirements(declaration) == ("no_such_framework", "no_such.part")
