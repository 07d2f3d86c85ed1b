"""Somebody else's harness: it streams, asks a helper, compacts its history, and goes back to the first conversation."""

import json

import httpx
import verifiers.v1 as vf


class CompactingHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        address, headers = f"{endpoint.rstrip('/')}/chat/completions", {"Authorization": f"Bearer {secret}"}

        async def ask(*messages):
            body = {"model": ctx.model, "messages": list(messages), "stream": True}
            content = ""
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(address, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            for line in answer.text.splitlines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[len("data: ") :])["choices"]:
                        content += choice["delta"].get("content") or ""
            return {"role": "assistant", "content": content}

        first = [user(prompt if isinstance(prompt, str) else prompt[-1].content)]
        first.append(await ask(*first))
        helped = await ask(user(f"Check: {first[1]['content']}"))
        await ask(user(f"So far: {helped['content']}"), first[1], user("Well?"))
        await ask(*first, user("Sure?"))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def user(content):
    return {"role": "user", "content": content}


__all__ = ["CompactingHarness"]
