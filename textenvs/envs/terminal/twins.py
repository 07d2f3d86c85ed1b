"""Twin worlds of a repair: the project's page states another option of a rule that a fault goes against."""

from __future__ import annotations

from ...sandbox import Shell, Tree
from ...task import Task, proven_facts
from .project import verify
from .tasks import TWIN_MARK, Assignment, assignment_of_task, inputs_of_turns, twin_of


async def twins_of(task: Task, shell: Shell) -> list[tuple[str, list[Task]]]:
    """Return the twin worlds of a task (:meth:`~textenvs.env.TextEnv.twin_worlds`): a fact for each such rule.

    Projects are made and compared: one whose other files, or whose user, show what the page states is no twin. Nor is
    one whose faults cancel out, so that it passes its checks: a task whose own faults do so is played with others. A
    question has no twins, and neither has a twin.

    Raises:
        SandboxFailure: A project could not be made, or a check not be run.
    """
    own = assignment_of_task(task)
    faults = [fault for fault in own.faults if fault.alternatives]
    if TWIN_MARK in str(task.extra["assignment"]) or not faults:
        return []
    files = await _files(own, shell)
    if files is None or not await _is_broken(task, own, files, shell):
        return []
    facts = []
    for fault in faults:
        others = []
        for option in fault.alternatives:
            try:
                twin = twin_of(task, fault.kind, option)
            except ValueError:  # the option's code does not stand in its file once
                continue
            other = assignment_of_task(twin)
            if not _is_told_the_same(own, other):
                continue
            other_files = await _files(other, shell)
            if other_files is None or _differing(files, other_files) != {fault.page}:
                continue
            if await _is_broken(twin, other, other_files, shell):
                others.append(twin)
        facts.append((f"the rule {fault.kind}", others))
    return proven_facts(task, facts)


def _is_told_the_same(own: Assignment, other: Assignment) -> bool:
    """Return whether two projects are made by the same commands, and their users say the same."""
    return (own.prompt, own.project.setup, own.project.later) == (
        other.prompt,
        other.project.setup,
        other.project.later,
    )


def _differing(files: Tree, others: Tree) -> set[str]:
    """Return the paths at which two projects have different entries, or only one has an entry."""
    return {path for path in files.keys() | others.keys() if files.get(path) != others.get(path)}


async def _files(assignment: Assignment, shell: Shell) -> Tree | None:
    """Return the files that an episode begins with; ``None`` where the faults do not fit, so that it has others."""
    try:
        return (await assignment.project.state(shell, assignment.faults)).project
    except ValueError:
        return None


async def _is_broken(task: Task, assignment: Assignment, files: Tree, shell: Shell) -> bool:
    """Return whether a check fails at the beginning. One fault always breaks one; several may cancel out."""
    if len(assignment.faults) == 1:
        return True
    drawn = inputs_of_turns(task)
    results = await verify(shell, files, assignment.project, drawn, one_input=True, beginning=files)
    return not all(results.values())
