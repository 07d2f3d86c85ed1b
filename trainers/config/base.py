"""The base of all commands' configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationInfo, model_validator

from ..section import ConflictError, Problems, Section
from . import unread
from .model import BFLOAT16, Bfloat16, multiplies_bfloat16


class RunConfig(Section):
    """The configuration of a run; ``reads`` names keys that are read only with certain other values: :mod:`.unread`."""

    reads: ClassVar[unread.Reads] = {}

    def checks(self) -> Problems:
        """Yield conflicts of values: pairs of a key and the problem."""
        return iter(())

    def chosen_defaults(self, bfloat16: Bfloat16 = multiplies_bfloat16) -> Mapping[str, Any]:
        """Return the defaults that depend on other keys, by ``section.key``, for a key that is null or not set.

        ``bfloat16`` tells whether the target machine multiplies in bfloat16.
        """
        return {}

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> RunConfig:
        bfloat16 = (info.context or {}).get(BFLOAT16, multiplies_bfloat16)
        for name, value in self.chosen_defaults(bfloat16).items():
            section, key = name.split(".")
            current = getattr(self, section)
            if getattr(current, key) is None or key not in current.model_fields_set:
                chosen = getattr(self, section).model_copy(update={key: value})
                object.__setattr__(self, section, chosen)  # frozen once it is made
        if conflicts := [*unread.unread_checks(self, self.reads), *self.checks()]:
            raise ConflictError(conflicts)
        return self
