"""verl's multi-turn rollout of 0.7, as far as it calls an interaction: for whichever base class that has."""

from __future__ import annotations

from textenvs.integrations.rows import episode_rows


async def play(interaction, played):
    """One episode as verl 0.7 plays it: the same keywords on every call, until the interaction says stop.

    Returns:
        What each call returned.
    """
    row = next(episode_rows("verl-interaction", [played.spec]))
    interaction_kwargs = row["extra_info"]["interaction_kwargs"]
    name = f"request-{played.spec.env}-{played.spec.seed}"
    await interaction.start_interaction(name, **interaction_kwargs)
    messages = list(row["prompt"])
    returned = []
    for reply in played.replies:
        messages.append({"role": "assistant", "content": reply})
        stop, text, score, more = await interaction.generate_response(name, messages, **interaction_kwargs)
        returned.append((stop, text, score, more))
        messages.append({"role": "user", "content": text})
        if stop:
            break
    assert await interaction.calculate_score(name) == sum(score for _, _, score, _ in returned)
    return returned


def check(returned, played):
    """They are what the environment said directly."""
    assert [score for _, _, score, _ in returned] == played.rewards
    assert [text for _, text, _, _ in returned] == ["\n\n".join(m["content"] for m in said) for said in played.said]
    assert [stop for stop, _, _, _ in returned] == [False] * (len(played.replies) - 1) + [True]
    last = returned[-1][3]
    assert (last["stop"], last["terminated"], last["truncated"]) == (played.stop, played.terminated, played.truncated)
