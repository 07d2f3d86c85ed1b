"""Twin worlds of a repair: the project's page states another option of a rule that a fault goes against."""

from __future__ import annotations

from ...sandbox import Shell, Tree
from ...task import Task, proven_facts
from .tasks import TWIN_MARK, Assignment, assignment_of_task, twin_of


async def twins_of(task: Task, shell: Shell) -> list[tuple[str, list[Task]]]:
    """Return the twin worlds of a task (:meth:`~textenvs.env.TextEnv.twin_worlds`): a fact for each such rule.

    Projects are made and compared: one whose other files, or whose user, show what the page states is no twin. A
    question has none, and neither has a twin.

    Raises:
        SandboxFailure: A project could not be made.
    """
    own = assignment_of_task(task)
    if TWIN_MARK in str(task.extra["assignment"]):
        return []
    facts = []
    for fault in own.faults:
        others = []
        for option in fault.alternatives:
            try:
                twin = twin_of(task, fault.kind, option)
            except ValueError:  # the option's code does not stand in its file once
                continue
            if await _only_the_page_differs(own, assignment_of_task(twin), shell):
                others.append(twin)
        facts.append((f"the rule {fault.kind}", others))
    return proven_facts(task, facts)


async def _only_the_page_differs(own: Assignment, other: Assignment, shell: Shell) -> bool:
    """Return whether one file differs where an episode begins: the page, because it states another sentence."""
    if (own.prompt, own.project.setup, own.project.later) != (other.prompt, other.project.setup, other.project.later):
        return False
    one, two = await _files(own, shell), await _files(other, shell)
    if one is None or two is None:
        return False
    return one.keys() == two.keys() and sum(entry != two[path] for path, entry in one.items()) == 1


async def _files(assignment: Assignment, shell: Shell) -> Tree | None:
    """Return the files that an episode begins with; ``None`` where the faults do not fit, so that it has others."""
    try:
        return (await assignment.project.state(shell, assignment.faults)).project
    except ValueError:
        return None
