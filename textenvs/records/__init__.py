"""Records of runs and evaluations: episodes, with the learner's numbers for them.

    from textenvs.records import open_run

    run = open_run("outputs/textenvs/run")
    for iteration in run.iterations:                        # nothing is read yet
        for line in iteration.summaries():                  # a few columns
            ...
    episode = run.iteration(120).episode(0)                 # one group of rows
    episode.tokens.advantage                                # an array, NaN outside of action tokens

No torch; pyarrow where Parquet is read. :mod:`.schema` has the columns, docs/records.md explains them.
"""

from .reader import Episode, Iteration, RecordedRun, RecordsError, Summary, Tokens, open_run

__all__ = ["Episode", "Iteration", "RecordedRun", "RecordsError", "Summary", "Tokens", "open_run"]
