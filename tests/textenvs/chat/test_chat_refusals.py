"""A conversation that is too long, in the words of each service, and refusals that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.chat.refusals import KnownTokens, read_refusal

KNOWN = KnownTokens(fewest=3000, most=20_000, max_tokens=1024)


def error(message, status=400, **fields):
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, **fields}}


ASKED = "However, you requested 5010 tokens (3986 in the messages, 1024 in the completion)."
SHORTER = "Please reduce the length of the messages or completion."
ANTHROPIC_RAW = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}

#: One refusal of each service: status and body.
TOO_LONG = {
    "OpenAI": error(f"This model's maximum context length is 4096 tokens. {ASKED}", code="context_length_exceeded"),
    "OpenAI, responses": error("Your input exceeds the context window of this model. Please adjust your input."),
    "Azure": error("Please shorten it.", code="context_length_exceeded", param="messages"),
    "Anthropic": (400, ANTHROPIC_RAW["error"] | {"message": "prompt is too long: 208310 tokens > 200000 maximum"}),
    "Anthropic, both": error("input length and `max_tokens` exceed context limit: 198000 + 21333 > 200000"),
    "Anthropic, bytes": (413, {"type": "error", "error": {"type": "request_too_large", "message": "Too many bytes"}}),
    "Gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (12) exceeds the maximum number of tokens allowed (10).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "Vertex": error("Unable to submit request because the input token count is 33 but model only supports up to 32."),
    "vLLM": (
        400,
        {"object": "error", "message": f"This model's maximum context length is 4096 tokens. {ASKED}", "code": 400},
    ),
    "vLLM, max_tokens": error(
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 1024 tokens "
        "and your request has 600 input tokens (512 > 1024 - 600).",
        param="max_tokens",
    ),
    "vLLM, prompt": error("The decoder prompt (length 70) is longer than the maximum model length of 64."),
    "vLLM, no room": error("max_tokens must be at least 1, got -5."),
    "SGLang": (
        400,
        {"object": "error", "message": "Requested token count exceeds the model's maximum context length."},
    ),
    "SGLang, input": (400, {"message": "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens)."}),
    "SGLang, longer": error("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    "Mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 65 tokens and 0 draft tokens, too large for model with 32 maximum context",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
    ),
    "Groq": error(SHORTER, code="context_length_exceeded", param="messages"),
    "Groq, no code": error(SHORTER),
    "Together": (
        422,
        {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4129 and 5"}},
    ),
    "Fireworks": error("The prompt is too long: 138430, model maximum context length: 131071"),
    "DeepSeek": error(f"This model's maximum context length is 65536 tokens. {ASKED}", code="invalid_request_error"),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Bedrock, Llama": (400, {"message": "Number of input tokens exceeds maximum length of 8192.", "__type": "V"}),
    "Ollama": error("input length exceeds the context length"),
    "Ollama, 500": error("prompt too long; exceeded max context length by 4 tokens", status=500, type="api_error"),
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "Too much.", "type": "exceed_context_size_error", "n_prompt_tokens": 9}},
    ),
    "llama.cpp, older": error("the request exceeds the available context size. try increasing the context size"),
    "LM Studio": (
        400,
        {
            "error": "Trying to keep the first 4978 tokens when context the overflows. However, the model is "
            "loaded with context length of only 4096 tokens."
        },
    ),
    "TGI": (
        422,
        {
            "error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1025",
            "error_type": "validation",
        },
    ),
    "OpenRouter": error(
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 14", code=400
    ),
    "OpenRouter, passed on": error(
        "Provider returned error", code=400, metadata={"raw": json.dumps(ANTHROPIC_RAW), "provider_name": "Anthropic"}
    ),
    "xAI": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
    ),
    "Cohere": (
        400,
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081, got 5."},
    ),
    "Poolside": error("Input length 131393 exceeds the maximum allowed input length of 131040 tokens."),
    "GitHub Models": (
        413,
        {"error": {"code": "tokens_limit_reached", "message": "Request body too large for gpt-4o model. Max size: 8"}},
    ),
    "Moonshot": error("Invalid request: Your request exceeded model token limit: 8192"),
    "MiniMax": (400, {"type": "error", "error": {"message": "invalid params, context window exceeds limit (2013)"}}),
    "Qwen": error("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
    "Zhipu": (400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    "SiliconFlow": (400, {"code": 20015, "message": "number of input tokens (9) has exceeded max_prompt_tokens (8)"}),
    "watsonx": (
        400,
        {"errors": [{"code": "x", "message": "the number of input tokens 9 cannot exceed the total tokens limit 8"}]},
    ),
    "Cerebras": error("Please reduce the length of the messages or completion. Current length is 9 while limit is 8"),
    "Cloudflare": (
        413,
        {
            "errors": [
                {
                    "message": "The estimated number of tokens (9) exceeded this model context window limit (8).",
                    "code": 5021,
                }
            ]
        },
    ),
    "LiteLLM": error("litellm.ContextWindowExceededError: litellm.BadRequestError: x", code="400"),
    "a proxy, no words": (413, "<html><body>413 Request Entity Too Large</body></html>"),
    "llama.cpp, generation": error("Context size has been exceeded.", status=500, type="server_error"),
    "Anthropic, large": error("too many total text bytes: 9500000 > 9000000"),
    "TensorRT-LLM": error(
        "The sum of prompt length (9000.0), query length (0) should not exceed max_num_tokens (8192)"
    ),
    "LMDeploy": error("prompt length + max tokens exceeds session_len"),
    "Baidu": (400, {"error_code": 336007, "error_msg": "the max input characters is 20000"}),
    "another spelling": error("bad", code="ContextLengthExceeded"),
    "another ending": error("bad", type="context_length_exceeded_error"),
    # Services to come, in plain sentences.
    "plain": error("Input is too long."),
    "plain, prompt": error("The prompt exceeds the model's maximum context of 8192 tokens"),
    "plain, tokens": (400, {"detail": "Prompt tokens exceeded the limit"}),
    "plain, sequence": error("The sequence length is too long: 3000 > 2048"),
    "plain, must": error("input tokens (9000) must be less than max input tokens (8192)"),
    "plain, conversation": error("Conversation too long"),
    # Other languages and services to come: by the numbers of tokens that are known here.
    "Chinese": error("输入 9000 个令牌，最多 8192"),
    "German": error("Die Anfrage hat 9.000 Token, erlaubt sind 8.192."),
    "new words": (422, {"detail": "prompt of 10,024 where 8,192 is what there is room for"}),
}


@pytest.mark.parametrize(("status", "body"), TOO_LONG.values(), ids=TOO_LONG)
def test_too_long_in_each_services_words(status, body):
    assert read_refusal(status, body if isinstance(body, str) else json.dumps(body)).too_long(KNOWN)


OTHER = {
    "a code": error("context length", code="rate_limit_exceeded"),
    "rate": error("Request too large for gpt-4o on tokens per min (TPM): Limit 8000, Requested 9000", status=429),
    "rate of an account": error("Request too large: TPM: Limit 6000, Requested 9000", 413, code="rate_limit_exceeded"),
    "key": error("maximum context length", status=401),
    "model": error("no model with a context length of 8192 for 9000", status=404),
    "longest answer": error(
        "max_tokens is too large: 9000. This model supports at most 8192 completion tokens, whereas you provided 9000.",
        code="invalid_value",
        param="max_tokens",
    ),
    "temperature": error("temperature must be at most 2", param="temperature"),
    "schema": error("Invalid schema for function 'f': long text at line 9000 column 35", param="tools[0].function"),
    "tools": error("array too long: expected at most 128, got 9000", code="array_above_max_length", param="tools"),
    "no reason": (400, ""),
    "quota": error("You have exceeded your daily token limit exceeded"),
    "rate in words": error("Request exceeds the limit of 6000 tokens per minute"),
    "stop": error("A stop sequence is too long"),
    "name": error("The name in messages[0] is too long, its length exceeds 64"),
    "token of an account": error("The API token exceeds the maximum length"),
    "image": error("messages: the image size exceeds 5 MB"),
    "another parameter": error("input too long", param="user"),
    "range of answers": error("Range of max_tokens should be [1, 8192]"),
    "longest valid answer": error("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    "words of the request": (422, {"detail": [{"msg": "extra", "input": "the maximum context length is 8 tokens"}]}),
    "small numbers": error("the prompt has 12 roles of 3"),
    "large numbers": error("prompt of account 123456789 and of 77"),
    "server": error("internal error", status=500),
    "generation": error("failed", code="tool_use_failed", failed_generation="prompt is too long"),
}


@pytest.mark.parametrize(("status", "body"), OTHER.values(), ids=OTHER)
def test_other_refusals_are_not_too_long(status, body):
    assert not read_refusal(status, json.dumps(body)).too_long(KNOWN)


def test_without_known_numbers_they_decide_nothing():
    status, body = TOO_LONG["new words"]
    assert not read_refusal(status, json.dumps(body)).too_long()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no"}}, "no"),
        ({"error": "no"}, "no"),
        ({"message": "no"}, "no"),
        ({"detail": [{"loc": ["body"], "msg": "no"}]}, "no"),
        ([{"error": {"message": "no"}}], "no"),
        ({"errors": [{"message": "no"}]}, "no"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": '{"error": "no"}'}}}, "error: no"),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_reason_is_read_from_each_shape(body, message):
    assert read_refusal(400, json.dumps(body)).message.endswith(message)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "param", "detail", "raw"]), inner)
    ),
    max_leaves=10,
)


@given(values, st.integers(400, 599))
def test_any_error_body_is_read(value, status):
    refusal = read_refusal(status, json.dumps(value))
    assert refusal.message
    assert refusal.too_long(KNOWN) in (True, False)


@pytest.mark.parametrize("body", ["[" * 60_000, '{"a":' * 10_000, "9" * 60_000, '{"error": ' + "9" * 5000 + "}"])
def test_hostile_error_bodies_are_read(body):
    assert read_refusal(400, body).message
