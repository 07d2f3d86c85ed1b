"""Tasks that others wrote: folders in the formats of Terminal-Bench and of Harbor, in a sandbox or in containers."""

from .attacks import ATTACKS
from .containers import Containers
from .folder import Folder, folder_of
from .runtime import Runtime, solution_command
from .sandboxed import Sandboxed

__all__ = ["ATTACKS", "Containers", "Folder", "Runtime", "Sandboxed", "folder_of", "solution_command"]
