"""Compute an iteration of a run again, from its files of episodes and the checkpoint before, and say what differs.

    python -m trainers.replay outputs/textenvs/run --iteration 51 [--group g203]

Each stage is given what the run recorded, so one that differs does not make the next ones differ: environments answer
the recorded replies, the engine samples behind the recorded contexts, credit and advantages begin from the recorded
rewards. The learner's steps follow one from the other. docs/records.md says what is exact where.
"""
