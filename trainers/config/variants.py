"""A section whose class is chosen by one of its keys: a discriminated union that other packages can extend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from ..section import Section, frozen


@dataclass(frozen=True)
class Variants:
    """Metadata of a section's field, or of the entries of a mapping of sections: its classes by the value of ``key``.

    ``section`` is the section's name; that of an entry is empty, and its keys are named from there.
    A mapping without ``key`` is of the ``default`` class. Keys of other classes are refused, like unknown ones, but for
    values that are their defaults: a configuration that was written out whole loads. Null is the default of a key whose
    default depends on the class, as older versions wrote it.
    """

    section: str
    key: str
    default: str
    classes: Mapping[str, type[Section]]

    @classmethod
    def of(cls, info: FieldInfo) -> Variants | None:
        """Return those of a field, ``None`` for other fields."""
        return next((item for item in info.metadata if isinstance(item, cls)), None)

    @property
    def switch(self) -> str:
        """The dotted name of the key that chooses."""
        return f"{self.section}.{self.key}".lstrip(".")

    def readers(self, name: str) -> tuple[str, ...]:
        """Return the values of the key whose classes have a field ``name``."""
        return tuple(value for value, kind in self.classes.items() if name in kind.model_fields)

    def is_default(self, name: str, value: Any) -> bool:
        """Return whether a value is the default of a field ``name`` of one of the classes."""
        return value is None or any(_is_default(field, value) for field in self._fields(name))

    def _fields(self, name: str) -> list[FieldInfo]:
        return [kind.model_fields[name] for kind in self.classes.values() if name in kind.model_fields]

    def _is_unset(self, name: str, value: Any) -> bool:
        return value is None and len({str(field.default) for field in self._fields(name)}) > 1

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Build a union tagged by the key."""
        union = core_schema.tagged_union_schema(
            {value: handler.generate_schema(kind) for value, kind in self.classes.items()}, discriminator=self.key
        )
        return core_schema.no_info_before_validator_function(self._own_keys, union)

    def _own_keys(self, value: Any) -> Any:
        """Name the class, and leave out what a configuration that was written out whole says of other classes."""
        if not isinstance(value, Mapping):
            return value
        tag = value.get(self.key, self.default)
        if not isinstance(tag, str) or tag not in self.classes:  # which the union refuses
            return {**value, self.key: tag}
        fields = self.classes[tag].model_fields
        own = {
            name: entry
            for name, entry in value.items()
            if not (self._is_unset(name, entry) if name in fields else self.is_default(name, entry))
        }
        return {**own, self.key: tag}


def _is_default(field: FieldInfo, value: Any) -> bool:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section) and isinstance(value, Mapping):  # a section within the section
        fields = type(default).model_fields
        return all(name in fields and _is_default(fields[name], entry) for name, entry in value.items())
    return bool(frozen(value) == default)
