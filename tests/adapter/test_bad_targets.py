"""Each wrong target gives one clear line."""

from __future__ import annotations

import sys

import pytest

from conformance.adapter.loading import MissingRequirement, TrainerError, load, missing_requirements

from .sources import ONE, TWO

FOLDER = "this is a folder: name a .py file in it, or package.module:function"
NO_TEXT = "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"
INSTALL = "install it, or fix the import"
#: Lines of an error on import start with the path of the file.
BACKENDS = (
    "single, ddp, horovod, fsdp2, zero-redundancy, deepspeed, parameter-server, ring, ring-gather, ray, ray-train"
)
#: Files, the target, and the message; `{}` is the folder of the files.
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"my_trainer.py": ONE}, "my_trianer.py", "my_trianer.py: no such file; did you mean my_trainer.py?"),
    ({}, "nowhere/my_trainer.py", "nowhere/my_trainer.py: no such file (nor a folder nowhere)"),
    ({"notes/a.txt": ""}, "notes/a.txt", "notes/a.txt: not a Python file: its name does not end in .py"),
    ({"mine/mine.py": ""}, "mine", f"mine: {FOLDER}"),
    ({"mine/mine.py": "", "mine/__init__.py": ""}, "mine:train", f"mine: {FOLDER}"),
    ({"mine/mine.py": ""}, "./mine", f"./mine: {FOLDER}"),
    ({}, ".", f".: {FOLDER}"),
    ({"pack/__init__.py": "", "pack/mine.py": ONE}, "pack.mien", "pack.mien: no such module; did you mean 'mine'?"),
    ({}, "acumulated", "acumulated: no such module; did you mean 'accumulated'?"),
    ({}, "no_such_package.mine", "no_such_package: no such module"),
    ({}, "no such thing", "'no such thing': neither a Python file nor a module name"),
    (
        {"plain_module.py": ONE},
        "plain_module.train",
        "plain_module.train: plain_module is not a package; for a function in it write plain_module:train",
    ),
    ({"several.py": TWO}, "several.py:trian", "several.py: no function 'trian' in it; did you mean 'train'?"),
    ({"several.py": TWO}, "several.py:zzz", "several.py: no function 'zzz' in it; it has train, other"),
    (
        {"several.py": TWO},
        "several.py:helper",
        "several.py: helper is not decorated with @trainer(...): add it from `conformance`",
    ),
    ({"several.py": TWO}, "several.py:__name__", "several.py: __name__ is not a function"),
    (
        {"empty.py": "x = 1"},
        "empty.py",
        (
            "empty.py: no @trainer function in it; to watch a script: conformance watch -- python empty.py; "
            "to make an adapter: conformance init empty.py"
        ),
    ),
    (
        {"defines_one.py": ONE, "imports_one.py": "from defines_one import train as theirs"},
        "imports_one.py",
        "imports_one.py: no @trainer function is defined in it; to run one that it imports, name imports_one.py:theirs",
    ),
    (
        {"several.py": TWO},
        "several.py",
        "several.py: 2 @trainer functions in it, name one of several.py:train, several.py:other, or add --trainer all",
    ),
    (
        {"made.py": "from conformance import trainer\nfirst, second = map(trainer, (lambda task: 1,) * 2)\n"},
        "made.py",
        "made.py: 2 @trainer functions in it, name one of made.py:first, made.py:second",
    ),
    ({}, ":train", "':train': write path.py:function or package.module:function"),
    ({}, "my_trainer.py:", "'my_trainer.py:': write path.py:function or package.module:function"),
    ({"broken.py": "def train(task)\n    pass\n"}, "broken.py", "{}/broken.py:1: SyntaxError: expected ':'"),
    (
        {"binary.py": "\0"},
        "binary.py",
        f"binary.py: {NO_TEXT}: source code string cannot contain null bytes",
    ),
    (
        {"raises.py": "class E(Exception):\n    def __str__(self): raise self\nraise E\n"},
        "raises.py",
        "{}/raises.py:3: E: (its message cannot be shown: E)",
    ),
    # The deepest frame in the user's own file, not the one in the library that raised.
    (
        {"raises.py": "import json\n\ndef read():\n    return json.loads('{')\n\nread()\n" + ONE},
        "raises.py",
        "{}/raises.py:4: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    (
        {"raises.py": "import sibling\n" + ONE, "sibling.py": "raise RuntimeError('first\\nsecond')"},
        "raises.py",
        "{}/raises.py:1: RuntimeError: first second",
    ),
    (
        {"declares.py": ONE.replace('"ddp"', '"dpp"')},
        "declares.py",
        f"{{}}/declares.py:4: ValueError: unknown backend 'dpp' (allowed: {BACKENDS}); did you mean 'ddp'?",
    ),
    ({"leaves.py": "import sys\nsys.exit(3)\n" + ONE}, "leaves.py", "{}/leaves.py:2: SystemExit: 3"),
    (
        {"needs.py": "import no_such_framework\n" + ONE},
        "needs.py",
        f"{{}}/needs.py:1: ModuleNotFoundError: No module named 'no_such_framework'; {INSTALL}",
    ),
]


@pytest.mark.parametrize(("files", "target", "message"), REFUSED, ids=[target for _, target, _ in REFUSED])
def test_what_is_wrong_is_said_in_one_line(files, target, message, write, tmp_path):
    for name, text in files.items():
        write(name, text)
    with pytest.raises(TrainerError) as refused:
        load(target)
    assert str(refused.value) == message.replace("{}", str(tmp_path))


def test_a_trainer_that_is_only_imported_may_be_asked_for(write):
    write("defines_one.py", ONE)
    write("imports_one.py", "from defines_one import train as theirs")
    assert load("imports_one.py:theirs")[0](None) == "one"


def test_a_failed_import_can_be_tried_again(write):
    """No partly imported module is left."""
    write("mended.py", "raise RuntimeError")
    with pytest.raises(TrainerError):
        load("mended.py")
    write("mended.py", ONE)
    assert load("mended.py")[0](None) == "one"


def test_an_import_that_fails_in_a_file_of_another_encoding(write):
    path = write("needs.py", "")
    path.write_bytes("# -*- coding: latin-1 -*-\n# caf\xe9\nimport no_such_framework\n".encode("latin-1"))
    with pytest.raises(TrainerError) as refused:
        load("needs.py")
    assert str(refused.value).startswith(f"{path}:3: ModuleNotFoundError: No module named 'no_such_framework'")


def test_an_import_that_fails_for_a_declared_module(write):
    """The declaration is read from the source: missing requirements make the trainer unavailable, not broken."""
    declares = '@trainer(backends=["ddp"], requires=["no_such_framework"])\n'
    source = ONE.replace('@trainer(backends=["single", "ddp"])\n', declares)
    write("needs.py", "import no_such_framework.torch\n" + source)
    with pytest.raises(MissingRequirement) as missing:
        load("needs.py")
    assert str(missing.value) == "needs no_such_framework: pip install no_such_framework"
    assert missing.value.module == "no_such_framework"
    assert (missing.value.declaration.name, missing.value.declaration.backends) == ("needs", ("ddp",))


def test_requirements_that_are_not_imported_at_the_top_are_looked_for(write):
    declares = 'requires=["no_such_framework", "no_such.part", "json"])'
    write("needs.py", ONE.replace('"ddp"])', f'"ddp"], {declares}'))
    _, declaration = load("needs.py")
    assert missing_requirements(declaration) == ("no_such_framework", "no_such.part")
