"""A section of keys that stands for one entry of a mapping of sections."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic.fields import FieldInfo

#: Pattern of an entry's name.
NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"


@dataclass(frozen=True)
class Alias:
    """Metadata of a mapping's field: ``section.KEY`` is ``FIELD.NAME.KEY``, where NAME is ``section.name``.

    The name's default is that of the entries' own key ``name``. ``section.enable=true`` adds the entry; ``about``
    describes that key. Command lines and files are translated by :mod:`trainers.command_line.entries`.
    """

    section: str
    about: str

    @classmethod
    def of(cls, info: FieldInfo) -> Alias | None:
        """Return that of a field, ``None`` for other fields."""
        return next((item for item in info.metadata if isinstance(item, cls)), None)

    @property
    def switch(self) -> str:
        """The dotted name of the key that adds the entry."""
        return f"{self.section}.enable"
