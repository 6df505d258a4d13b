"""One spec file to a validated ``Spec`` with the position of every key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.presets import shipped_specs
from deepinfer_gen.specs.source_text import Place, SourceText, read_source

if TYPE_CHECKING:
    from deepinfer_gen.specs.schema import Spec
    from deepinfer_gen.specs.yaml_tree import KeyPlace, Tree, YamlTree

MAX_SPEC_BYTES = 64 * 1024
_STAND_INS: Tree = {
    "engine": {"name": "x"},
    "model": "deepseek-v4.1-flash",
    "hardware": "cpu",
    "limits": {"max_num_seqs": 1, "max_model_len": 2},
}


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec that satisfies the schema. ``folder`` bounds the paths that it may name."""

    source: SourceText
    folder: Path
    spec: Spec
    places: Mapping[str, KeyPlace]

    def place(self, *keys: str) -> KeyPlace:
        """Where the first of ``keys`` that the spec writes stands; the top of the file if it writes none."""
        from deepinfer_gen.specs.yaml_tree import KeyPlace

        top = KeyPlace(self.source, Place(1, 1), Place(1, 1))
        return next((self.places[key] for key in keys if key in self.places), top)

    def source_of(self, key: str) -> str | None:
        """``file:line:col`` (base name) of the value under ``key``, or ``None`` if the spec leaves it out."""
        at = self.places.get(key)
        return at.source.source(at.value) if at else None


def load_spec(path: str | Path, overrides: Mapping[str, str] | None = None) -> LoadedSpec:
    """Load a spec from a file, or a shipped one by its bare name (with or without ``.yaml``).

    ``overrides`` replaces values by dotted key, each given as YAML text (``fit --set``). Raises one ``InputError`` with
    every fault of the file; faults between keys that are themselves sound are among them.
    """
    from deepinfer_gen.specs.schema import Spec
    from deepinfer_gen.specs.validate import in_file_order, validate
    from deepinfer_gen.specs.yaml_tree import read_tree

    file, shown = _find(path)
    tree = read_tree(read_source(file, shown, MAX_SPEC_BYTES, "the spec"))
    for key, text in (overrides or {}).items():
        tree = _override(tree, key, text)
    spec, diagnostics, faulty = validate(Spec, tree)
    if spec is None:
        diagnostics += _faults_between_sound_keys(tree, faulty, file.parent)
        raise InputError(in_file_order(diagnostics))
    return LoadedSpec(tree.source, file.parent, spec, tree.places)


def _find(path: str | Path) -> tuple[Path, str]:
    """The file to read and the name to show."""
    if str(path) in shipped_specs():
        return shipped_specs()[str(path)], f"{path}.yaml"
    file = Path(path)
    if file.name == str(path) and not os.path.exists(path):
        if file.suffix == ".yaml" and file.stem in shipped_specs():
            return shipped_specs()[file.stem], str(path)
        from deepinfer_gen.specs.validate import did_you_mean

        remedy = did_you_mean(str(path), shipped_specs(), "name a file, or one of the shipped specs")
        raise InputError(Diagnostic("DI001", "the spec does not exist", str(path), help=remedy))
    return file, str(path)


def _override(tree: YamlTree, key: str, text: str) -> YamlTree:
    """``tree`` with the value under ``key`` replaced by the YAML scalar ``text``."""
    from deepinfer_gen.specs.yaml_tree import KeyPlace, YamlTree, read_tree

    shown = f"--set {key}={text}"
    nowhere = SourceText(shown, shown, "")
    single = read_tree(SourceText(shown, shown, f"value: {text}"))
    faults = [Diagnostic(d.code, d.message, shown, help=d.help) for d in single.diagnostics]
    if faults or set(single.tree) != {"value"} or isinstance(single.tree["value"], dict):
        raise InputError(faults or Diagnostic("DI013", f"{key} needs a single value", shown))
    content = _copy(tree.tree)
    section = content
    *parents, name = key.split(".")
    for parent in parents:
        child = section.setdefault(parent, {})
        if not isinstance(child, dict):
            raise InputError(Diagnostic("DI011", f"unknown key '{key}'", shown))
        section = child
    section[name] = single.tree["value"]
    place = KeyPlace(nowhere, Place(), Place())
    sections = {".".join(parents[: n + 1]): place for n in range(len(parents))}
    places = {**sections, **tree.places, key: place}
    return YamlTree(tree.source, content, places, tree.faulty - {key}, tree.diagnostics)


def _copy(tree: Tree) -> Tree:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in tree.items()}


def _faults_between_sound_keys(tree: YamlTree, faulty: frozenset[str], folder: Path) -> list[Diagnostic]:
    """Check the rules between keys on what is left when the faulty keys are taken out, so that one run tells all.

    Required keys that are missing get stand-ins; a fault that involves one of them, or a faulty key, is dropped.
    """
    from deepinfer_gen.specs.resolve import faults_of
    from deepinfer_gen.specs.schema import Spec

    content = _copy(tree.tree)
    for key in faulty:
        section = content
        *parents, name = key.split(".")
        for parent in parents:
            child = section.get(parent)
            section = child if isinstance(child, dict) else {}
        section.pop(name, None)
    unsound = set(faulty)
    for name, stand_in in _STAND_INS.items():
        if not isinstance(stand_in, dict):
            if name not in content:
                content[name] = stand_in
                unsound.add(name)
            continue
        section_ = content.setdefault(name, {})
        assert isinstance(section_, dict)
        for inner, value in stand_in.items():
            if inner not in section_:
                section_[inner] = value
                unsound.add(f"{name}.{inner}")
    loaded = LoadedSpec(tree.source, folder, Spec.model_validate(content), tree.places)
    return [f.diagnostic for f in faults_of(loaded) if not any(_touches(key, unsound) for key in f.keys)]


def _touches(key: str, unsound: set[str]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[: n + 1]) in unsound for n in range(len(parts)))
