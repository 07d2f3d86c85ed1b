"""Somebody else's taskset: one question, one rewarded answer; and tasks that break."""

import verifiers.v1 as vf


class ToyData(vf.TaskData):
    answer: str


class ToyTask(vf.Task[ToyData]):
    @vf.reward
    async def right(self, trace) -> float:
        if self.data.answer == "broken":
            raise OSError("the scorer is broken")
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class ToyTaskset(vf.Taskset[ToyTask, vf.TasksetConfig]):
    def load(self):
        for question, answer in (("1 + 1?", "2"), ("2 + 2?", "4"), ("?", "broken")):
            yield ToyTask(ToyData(prompt=question, answer=answer, system_prompt="Be short."), self.config.task)


__all__ = ["ToyTaskset"]
