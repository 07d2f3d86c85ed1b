"""Where the parts of a run are: the plan, a learner of many ranks, and Ray."""
