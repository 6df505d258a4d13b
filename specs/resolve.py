"""A loaded spec to ``Resolved``: defaults filled, model config and hardware table read, every rule checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.formula import Value, normalise
from deepinfer_gen.specs.defaults import AUTO_SAYS, BUILT, COMPUTED
from deepinfer_gen.specs.fields import SpecField, spec_fields
from deepinfer_gen.specs.hardware_table import HardwareTable, load_hardware
from deepinfer_gen.specs.load import LoadedSpec
from deepinfer_gen.specs.model_config import ModelConfig, load_model_config
from deepinfer_gen.specs.resolved import Resolved, Setting
from deepinfer_gen.specs.rules import RULES, Rule
from deepinfer_gen.specs.schema import spec_value
from deepinfer_gen.specs.schema_types import ALL
from deepinfer_gen.specs.validate import in_file_order, show


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule and the spec keys that it involves."""

    diagnostic: Diagnostic
    keys: frozenset[str]


def resolve(loaded: LoadedSpec) -> Resolved:
    """Fill in, look up and check; raises one ``InputError`` with every fault."""
    resolver = _Resolver(loaded)
    if resolver.faults:
        raise InputError(in_file_order(f.diagnostic for f in resolver.faults))
    assert resolver.model is not None
    assert resolver.hardware is not None
    meaningful = {
        key: setting
        for key, setting in resolver.settings.items()
        if spec_fields()[key].means_something_for(resolver.engine_type)
    }
    return Resolved(loaded.spec.engine.name, loaded.source.base, meaningful, resolver.model, resolver.hardware)


def faults_of(loaded: LoadedSpec) -> list[Fault]:
    """Every fault between keys, in no order."""
    return _Resolver(loaded).faults


class _Resolver:
    def __init__(self, loaded: LoadedSpec) -> None:
        self.loaded = loaded
        self.engine_type = loaded.spec.engine.type
        self.faults: list[Fault] = []
        self.settings: dict[str, Setting] = {}
        self.model = self._look_up_model()
        self.hardware = self._look_up_hardware()
        self.known = self._roots()
        self._check_fields()
        self._fill()
        for rule in RULES:
            self._check(rule)

    def _look_up_model(self) -> ModelConfig | None:
        loaded, spec = self.loaded, self.loaded.spec
        try:
            return load_model_config(spec.model, loaded.folder, loaded.place("model"), loaded.source.shown)
        except InputError as fault:
            self.faults += [Fault(d, frozenset({"model"})) for d in fault.diagnostics]
            return None

    def _look_up_hardware(self) -> HardwareTable | None:
        loaded, spec = self.loaded, self.loaded.spec
        try:
            return load_hardware(spec.hardware, loaded.folder, loaded.place("hardware"), loaded.source.shown)
        except InputError as fault:
            self.faults += [Fault(d, frozenset({"hardware"})) for d in fault.diagnostics]
            return None

    def _roots(self) -> dict[str, Value]:
        known: dict[str, Value] = {}
        if self.model:
            known |= {f"model.config.{name}": s.value for name, s in self.model.settings().items()}
        if self.hardware:
            known |= {f"hardware.{name}": s.value for name, s in self.hardware.settings.items()}
        return known

    def _check_fields(self) -> None:
        for key, field in spec_fields().items():
            at = self.loaded.places.get(key)
            if at is None:
                continue
            if not field.means_something_for(self.engine_type):
                where = self._evidence("engine.type", self.engine_type)
                message = f"{key} means nothing for a {self.engine_type} engine: {where}"
                self._fault(at.source.error("DI022", message, at.key, "remove the key"), key, "engine.type")
            elif field.status == "planned" and spec_value(self.loaded.spec, key) != self._plain_default(field):
                message = (
                    f"{key} is {show(spec_value(self.loaded.spec, key))}, and this setting is planned: nothing reads "
                    f"it yet, so only its default {show(self._plain_default(field))} is accepted"
                )
                self._fault(at.error("DI021", message, "remove the key"), key, "engine.type")

    def _plain_default(self, field: SpecField) -> Value:
        if field.rule:
            return COMPUTED[field.key](self.engine_type).value({"engine.type": self.engine_type})
        return field.default  # type: ignore[no-any-return]

    def _fill(self) -> None:
        """All settings, given ones first, then computed ones in dependency order."""
        fields = spec_fields()
        for key, field in fields.items():
            value = spec_value(self.loaded.spec, key)
            if key in BUILT and value == "auto":
                value, says = BUILT[key]
                self._put(field, value, self._auto_source(key), why=f"{field.description}; {says}")
            elif key not in COMPUTED or (value is not None and value != "auto"):
                self._put(field, value, self.loaded.source_of(key) or "default")
        for key, rule in COMPUTED.items():
            default = rule(self.engine_type)
            if key not in self.settings and all(operand in self.known for _, operand in default.operands):
                source = self._auto_source(key) if key in AUTO_SAYS else "default"
                value = default.value(self.known)
                self._put(fields[key], value, source, default.expression, default.operands)
        self.settings = {key: self.settings[key] for key in fields if key in self.settings}

    def _auto_source(self, key: str) -> str:
        return f"{self.loaded.source_of(key) or 'default'}: {AUTO_SAYS[key]}"

    def _put(
        self,
        field: SpecField,
        value: Value,
        source: str,
        formula: str = "",
        operands: tuple[tuple[str, str], ...] = (),
        why: str = "",
    ) -> None:
        exact = normalise(value)
        self.known[field.key] = exact
        self.settings[field.key] = Setting(exact, source, why or field.description, field.unit, formula, operands)

    def _check(self, rule: Rule) -> None:
        if self.engine_type not in rule.types or not all(key in self.known for key in rule.keys):
            return
        values = [self.known[key] for key in rule.keys]
        if rule.holds(*values):
            return
        evidence = ", ".join(
            self._evidence(key, value) for key, value in zip(rule.keys, values, strict=True) if self._meaningful(key)
        )
        at = self.loaded.place(*rule.keys, *("model" for key in rule.keys if key.startswith("model.config.")))
        involved = (*rule.keys, "engine.type") if rule.types != ALL else rule.keys
        self._fault(at.error(rule.code, f"{rule.sentence}: {evidence}", rule.help), *self._closure(involved))

    def _meaningful(self, key: str) -> bool:
        field = spec_fields().get(key)
        return field is None or field.means_something_for(self.engine_type)

    def _evidence(self, key: str, value: Value) -> str:
        at = self.loaded.places.get(key)
        if at is not None:
            where = f"line {at.value.line}" if at.value.line else at.source.shown
        elif key.startswith("model.config.") and self.model:
            where = self.model.sources[key.removeprefix("model.config.")]
        elif key in AUTO_SAYS:
            where = self.settings[key].source
        elif key in self.settings and self.settings[key].formula:
            where = f"default: {self.settings[key].formula}"
        else:
            where = "default"
        return f"{key} = {show(value)} ({where})"

    def _closure(self, keys: tuple[str, ...]) -> Iterator[str]:
        """The keys, and those that computed defaults among them were computed from."""
        for key in keys:
            yield "model" if key.startswith("model.config.") else "hardware" if key.startswith("hardware.") else key
            if key in self.settings:
                yield from self._closure(tuple(operand for _, operand in self.settings[key].operands))

    def _fault(self, diagnostic: Diagnostic, *keys: str) -> None:
        self.faults.append(Fault(diagnostic, frozenset(keys)))
