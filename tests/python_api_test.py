"""What people call from Python: every public name has a docstring and whole annotations; docs/python.md names all of them and
nothing else, with the signatures that the code has, and its examples print what they say; the import needs torch alone."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
import typing

import pytest

import faultline
import transcript
from program import PROGRAM, ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
MODULES = ["arithmetic", "armed", "attach", "complaints", "diagnose", "evidence", "launches", "plan", "ray_executor", "ray_workers", "sentinel", "steps", "trainer", "vllm_coverage"]
WITH_CONTEXT = ("__init__", "__enter__", "__exit__")
NOT_RUN = ("Trainers and engines", "Diagnosis")  # sections whose examples need a trainer, an engine or a Hugging Face model


# --- docstrings and annotations -----------------------------------------------------------------------------------------
def gaps_of_function(name, function):
    """What is missing: a docstring, an annotation, or what an annotation names. *options and **options may be anything."""
    gaps = [] if inspect.getdoc(function) and function.__doc__ else [f"{name}: no docstring"]
    signature = inspect.signature(function)
    for parameter in list(signature.parameters.values()):
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.annotation is parameter.empty and parameter.name != "self" and not is_open:
            gaps.append(f"{name}: no annotation of {parameter.name}")
    if signature.return_annotation is signature.empty:
        gaps.append(f"{name}: no return annotation")
    try:
        typing.get_type_hints(inspect.unwrap(function))
    except NameError as error:
        gaps.append(f"{name}: {error}")
    return gaps


def methods_of(kind):
    return {name: value for name, value in vars(kind).items() if inspect.isfunction(value) and (not name.startswith("_") or name in WITH_CONTEXT)}


def attributes_of(kind):
    """Public attributes that methods set, and whether their types are known: annotated there, or given from an annotated parameter."""
    found = {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    for method in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
        arguments = {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs) if argument.annotation}
        for node in ast.walk(method):
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self" and not target.attr.startswith("_"):
                        is_known = isinstance(node, ast.AnnAssign) or (isinstance(node.value, ast.Name) and node.value.id in arguments)
                        found[target.attr] = found.get(target.attr, False) or is_known
    return found


def gaps_of_class(name, kind):
    gaps = [] if kind.__doc__ else [f"{name}: no docstring"]
    for method, function in methods_of(kind).items():
        gaps += gaps_of_function(f"{name}.{method}", function)
    for attribute in attributes_of(kind):
        if not re.search(rf"`{attribute}`", kind.__doc__ or ""):
            gaps.append(f"{name}.{attribute}: the docstring of the class does not name it")
    return gaps


def constants_with_a_docstring(module):
    body = ast.parse(inspect.getsource(module)).body
    return {before.targets[0].id for before, after in zip(body, body[1:]) if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)}


def gaps_of(name, value):
    if inspect.isclass(value):
        return gaps_of_class(name, value)
    if callable(value):
        return gaps_of_function(name, value)
    return [] if name in constants_with_a_docstring(faultline) else [f"{name}: no docstring below it"]


@pytest.mark.parametrize("name", faultline.__all__)
def test_a_public_name_is_documented_and_annotated(name):
    assert gaps_of(name, getattr(faultline, name)) == []


@pytest.mark.parametrize("name", ["Attachment", "CollectionError", "EvidenceError", "Plan"])
def test_the_type_of_a_public_attribute_is_known(name):
    attributes = attributes_of(getattr(faultline, name))
    assert attributes and [attribute for attribute, is_known in attributes.items() if not is_known] == []


@pytest.mark.parametrize("name", MODULES)
def test_a_public_name_of_a_module_is_documented_and_annotated(name):
    module = importlib.import_module(f"faultline.{name}")
    own = {key: value for key, value in vars(module).items() if not key.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__}
    assert own and module.__doc__
    assert [gap for key, value in own.items() for gap in gaps_of(key, value)] == []


def test_the_eyes_of_these_tests():
    def bare(x, *, y: int = 0, **options):
        pass

    class Open:
        """Has `named`."""

        def __init__(self, named: int) -> None:
            """Takes a number."""
            self.named, self.forgotten = named, 2

        def method(self):
            """Nothing."""

    def wrong(x: "Nowhere") -> None:  # noqa: F821
        """An annotation that names nothing."""

    assert gaps_of_function("bare", bare) == ["bare: no docstring", "bare: no annotation of x", "bare: no return annotation"]
    assert gaps_of_function("wrong", wrong) == ["wrong: name 'Nowhere' is not defined"]
    assert gaps_of_class("Open", Open) == ["Open.method: no return annotation", "Open.forgotten: the docstring of the class does not name it"]
    assert attributes_of(Open) == {"named": False, "forgotten": False}
    assert gaps_of("_SUMS", faultline._SUMS) == ["_SUMS: no docstring below it"]


# --- the page -------------------------------------------------------------------------------------------------------------
def resolve(path):
    """What a dotted name means: attributes first, then modules, of which functions of the same name may stand in front."""
    value, names = faultline, path.split(".")[1:]
    for count, name in enumerate(names, start=1):
        if hasattr(value, name):
            value = getattr(value, name)
            continue
        parent = "faultline." + ".".join(names[: count - 1])
        try:
            value = importlib.import_module(f"{parent.rstrip('.')}.{name}")
        except ImportError:
            value = getattr(importlib.import_module(parent.rstrip(".")), name)
    return value


def signature_of(path):
    """As the page writes it: names, defaults and what is returned; a class without the latter, a method without self."""
    value = resolve(path)
    signature = inspect.signature(value)
    is_method = inspect.isfunction(value) and value.__qualname__.count(".") == 1
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()][1 if is_method else 0 :]
    returned = "" if inspect.isclass(value) else f" -> {signature.return_annotation}"
    return f"{path}{inspect.Signature(parameters)}{returned}"


SIGNATURES = re.findall(r"^`(faultline\.[\w.]+)(\(.*)`$", PAGE, re.MULTILINE)
HEADINGS = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)


def test_every_public_name_has_its_place_on_the_page():
    assert [name for name in faultline.__all__ if HEADINGS.count(f"faultline.{name}") != 1] == []


@pytest.mark.parametrize("name", [name for name in faultline.__all__ if callable(getattr(faultline, name))])
def test_the_signature_of_every_function_and_method_is_on_the_page(name):
    value, written = getattr(faultline, name), [path for path, _ in SIGNATURES]
    methods = [f"faultline.{name}.{method}" for method in methods_of(value) if method not in WITH_CONTEXT] if inspect.isclass(value) else []
    assert [path for path in (f"faultline.{name}", *methods) if written.count(path) != 1] == []
    if inspect.isclass(value):
        section = PAGE.split(f"### faultline.{name}\n")[1].split("\n### ")[0]
        assert [attribute for attribute in attributes_of(value) if f"`{attribute}`" not in section] == []


@pytest.mark.parametrize("path, rest", SIGNATURES)
def test_a_signature_on_the_page_is_the_code_s(path, rest):
    assert path + rest == signature_of(path)


def names_on(page):
    imported = [f"{module}.{name.strip()}" for module, names in re.findall(r"^from (faultline[\w.]*) import (.*)$", page, re.MULTILINE) for name in names.split(",")]
    return sorted({*re.findall(r"(?<![\w/.])faultline(?:\.[A-Za-z_]\w*)+", page), *imported})


def test_the_page_has_no_name_that_does_not_exist():
    found = names_on(PAGE)
    assert len(found) > 30 and not [heading for heading in HEADINGS if heading not in found]
    for path in found:
        resolve(path)
    for missing in ("faultline.plam", "faultline.Plan.armm", "faultline.launches.nothing", "faultline.nowhere.plan"):
        with pytest.raises((AttributeError, ImportError)):
            resolve(missing)


def test_the_module_behind_launches_has_the_parts_that_the_page_names():
    text = PAGE.split("The module `faultline.launches` has the parts:")[1].split("\n\n")[0]
    parts = re.findall(r"`(\w+)`", text)
    assert len(parts) == 5 and [part for part in parts if not hasattr(importlib.import_module("faultline.launches"), part)] == []


def test_a_signature_that_is_not_true_is_noticed():
    assert signature_of("faultline.Plan.begin_step") == "faultline.Plan.begin_step(step, *, told_by='call') -> None"
    assert signature_of("faultline.digest") != "faultline.digest(y) -> int"


def test_the_examples_of_the_page_print_what_they_say(tmp_path):
    sections = [section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE) if not section.startswith(NOT_RUN)]
    source = "\n".join(content for section in sections for language, content, _ in transcript.blocks(section) if language == "python")
    shown = re.findall(r"^# → (.*)$", source, re.MULTILINE)
    script = tmp_path / "page.py"
    script.write_text(source, encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=transcript.environment(PROGRAM.parent), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(shown) > 10 and transcript.matches(shown, done.stdout.splitlines()), transcript.difference(shown, done.stdout.splitlines())


def test_other_examples_of_the_page_are_python():
    for language, content, line in transcript.blocks(PAGE):
        if language == "python":
            ast.parse(content, f"docs/python.md:{line}")


# --- the import -----------------------------------------------------------------------------------------------------------
def test_the_import_needs_torch_alone():
    check = "import sys, faultline; print(sorted({'ray', 'vllm', 'transformers', 'trl', 'verl'} & {name.split('.')[0] for name in sys.modules}))"
    variables = {name: value for name, value in transcript.environment(PROGRAM.parent).items() if name != "FAULTLINE_RECIPE"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", check], env=variables, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
