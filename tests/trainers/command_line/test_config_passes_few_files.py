"""A key passes at most three files: a part takes its section whole, and a value that several need is derived once."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import trainers.config.commands  # noqa: F401 - all sections exist
from trainers.config import PPOConfig
from trainers.config.variants import Variants
from trainers.section import Section

TRAINERS = Path(inspect.getfile(Section)).parent
#: The code that declares, checks, describes and translates keys.
CONFIG = ("config", "command_line", "compat", "section.py")
#: Keys that more files read; the test fails for one that no longer does.
MANY = frozenset(
    [
        "cluster.backend",
        "cluster.colocate",
        "cluster.learner_ranks",
        "data.chat_template_kwargs",
        "engine.max_context",
        "engine.name",
        "env.curriculum.reverse_share",
        "env.mixture",
        "model.device",
        "model.dtype",
        "model.enable_gradient_checkpointing",
        "model.lora_rank",
        "model.path",
        "multiturn_reward.enable",
        "rollout.max_response_length",
        "rollout.staleness",
        "trainer.seed",
        "trainer.val_only",
    ]
)

Kinds = frozenset[type[Section]]
NONE: Kinds = frozenset()


def subclasses(kind: type[Section]) -> Iterator[type[Section]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


#: For each name of a section's class, the classes that a variable with this annotation may have.
KINDS = {kind.__name__: frozenset(subclasses(kind)) for kind in [*subclasses(Section)][1:]}


def below(kind: type[Section], name: str) -> Kinds:
    """The classes of a section's field, if that is a section, too."""
    info = kind.model_fields[name]
    if variants := Variants.of(info):
        return frozenset(variants.classes.values())
    annotation = info.annotation
    return frozenset([annotation]) if isinstance(annotation, type) and issubclass(annotation, Section) else NONE


def keys(kinds: Iterable[type[Section]], prefix: str = "") -> Iterator[tuple[type[Section], str, str]]:
    """Yield each key: its class, its name there, and its dotted name."""
    for kind in kinds:
        for name in kind.model_fields:
            if sections := below(kind, name):
                yield from keys(sections, f"{prefix}{name}.")
            else:
                yield kind, name, f"{prefix}{name}"


class Reads(ast.NodeVisitor):
    """The keys that a module reads as attributes of variables, parameters and fields whose section is evident."""

    def __init__(self) -> None:
        self.keys: set[tuple[type[Section], str]] = set()
        self._scopes: list[dict[str, Kinds]] = [{}]
        self._fields: dict[str, Kinds] = {}  # of `self`, by name

    def kinds(self, node: ast.AST) -> Kinds:
        """The classes of an expression's sections."""
        match node:
            case ast.Name(id=name):
                return next((scope[name] for scope in reversed(self._scopes) if name in scope), NONE)
            case ast.Attribute(value=owner, attr=name):
                if kinds := self.kinds(owner):
                    return frozenset().union(*(below(kind, name) for kind in kinds if name in kind.model_fields))
                if isinstance(owner, ast.Name) and owner.id == "self" and name in self._fields:
                    return self._fields[name]
                return KINDS["PPOConfig"] if name.lstrip("_") == "config" else NONE
            case ast.IfExp(body=body, orelse=other):
                return self.kinds(body) | self.kinds(other)
            case ast.Call(func=ast.Name(id=name)):
                return KINDS.get(name, NONE)
        return NONE

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        self.keys |= {(kind, node.attr) for kind in self.kinds(node.value) if isinstance(node.ctx, ast.Load)}

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        name = node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")
        self._scopes[-1][name] = self._fields[name] = annotated(node.annotation)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._fields = {}
        self._scopes.append({"self": KINDS.get(node.name, NONE)})
        for child in sorted(node.body, key=lambda child: getattr(child, "name", "") != "__init__"):
            self.visit(child)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._scopes.append({name.arg: annotated(name.annotation) for name in arguments if name.annotation})
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for pair in zip(targets, values, strict=False):
                    self._bind(*pair)
            case ast.Name(id=name), _:
                self._scopes[-1][name] = self.kinds(value)
            case ast.Attribute(value=ast.Name(id="self"), attr=name), _:
                self._fields[name] = self.kinds(value)


def annotated(annotation: ast.AST | None) -> Kinds:
    """The classes of an annotation that is a section or a union of some; none for containers."""
    match annotation:
        case ast.Name(id=name):
            return KINDS.get(name, NONE)
        case ast.BinOp(left=left, right=right):
            return annotated(left) | annotated(right)
    return NONE


def files_by_key() -> dict[str, set[str]]:
    """The files that read each key; of classes that share a name, those of the one that most files read."""
    readers: dict[tuple[type[Section], str], set[str]] = defaultdict(set)
    for path in sorted(TRAINERS.rglob("*.py")):
        file = path.relative_to(TRAINERS)
        if file.parts[0] not in CONFIG:
            reads = Reads()
            reads.visit(ast.parse(path.read_text(encoding="utf-8")))
            for key in reads.keys:
                readers[key].add(file.as_posix())
    files: dict[str, set[str]] = {}
    for kind, name, dotted in keys([PPOConfig]):
        files[dotted] = max(files.get(dotted, set()), readers[kind, name], key=len)
    return files


def test_key_passes_at_most_three_files() -> None:
    files = files_by_key()
    assert len(files) > 250
    assert sum(map(bool, files.values())) > 0.8 * len(files), "most keys' readers are recognised"
    many = {key for key, paths in files.items() if len(paths) > 3}
    assert many == MANY, "\n".join(f"{key}: {', '.join(sorted(files[key]))}" for key in sorted(many ^ MANY))
