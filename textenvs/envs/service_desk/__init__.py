"""The service desk: tools and a simulated customer together, judged by the database that is left behind."""

from .env import ServiceDesk
from .scenario import Fact, Persona, Scenario, Wish
from .tasks import ServiceDeskTasks, task_of

__all__ = ["Fact", "Persona", "Scenario", "ServiceDesk", "ServiceDeskTasks", "Wish", "task_of"]
