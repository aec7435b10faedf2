"""Refusals of requests that are too long, in the words of real servers, and the numbers that they tell."""
# ruff: noqa: E501, ISC004 - the words of servers, as they come

import pytest

from warren.transport.providers.excess import is_too_long, never_fits, numbers

TOO_LONG: list[tuple[str, int | None, int | None]] = [
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. Please reduce the length of the messages.",
        8192,
        8545,
    ),
    (
        "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10346 in your prompt; 5 for the completion). Please reduce your prompt; or completion length.",
        8191,
        10346,
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (1000 in the messages, 8000 in the completion). Please reduce",
        8192,
        1000,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 8192 tokens and your request has 1234 input tokens (8000 > 8192 - 1234).",
        8192,
        1234,
    ),
    (
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only 131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=98305)",
        131072,
        98305,
    ),
    ("prompt is too long: 208310 tokens > 200000 maximum", 200000, 208310),
    (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try again",
        200000,
        199759,
    ),
    ("The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", 1048575, 1196265),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", 1048576, None),
    (
        "Unable to submit request because the input token count is 130000 but model only supports up to 32000.",
        32000,
        130000,
    ),
    ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096, 5000),
    ("the request exceeds the available context size, try increasing it", None, None),
    ("Requested tokens (41003) exceed context window of 8192", 8192, None),
    (
        "Prompt contains 300000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        131072,
        300000,
    ),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072, 537812),
    ("The input (516368 tokens) is longer than the model's context length (262144 tokens).", 262144, 516368),
    (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 537812 tokens (500000 of text input, 37812 in the output). Please reduce",
        131072,
        500000,
    ),
    ("prompt token count of 145000 exceeds the limit of 128000", 128000, 145000),
    ("Your request exceeded model token limit: 262144 (requested: 300000)", 262144, 300000),
    ("Invalid request: Your request exceeded model token limit: 262144", 262144, None),
    (
        "Trying to keep the first 12345 tokens when context the overflows. However, the model is loaded with context length of only 8192 tokens, which is not enough",
        8192,
        None,
    ),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length",
        None,
        None,
    ),
    ("invalid params, context window exceeds limit", None, None),
    ("Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens", 256000, 5958968),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens. Please reduce the length of the messages.",
        272000,
        300000,
    ),
    ("Input is too long for requested model.", None, None),
    ("Too many input tokens. Max input tokens: 8192, request input token count: 9300", 8192, 9300),
    ("prompt too long; exceeded max context length by 4096 tokens", None, None),
    ("the input length exceeds the context length", None, None),
    ("Range of input length should be [1, 129024]", 129024, None),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262144, 265330),
    ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", 131040, 131393),
    (
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 140000 tokens: 130000 tokens from the input messages and 10000 tokens for the completion.",
        131072,
        None,
    ),
    ("tokens in request more than max tokens allowed", None, None),
    ("Prompt exceeds max length", None, None),
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "Request too large for model `x` in organization `org` service tier `on_demand` on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again.",
        12000,
        14137,
    ),
    (
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 48000. The input or output tokens must be reduced in order to run successfully.",
        30000,
        48000,
    ),
    (
        "This model's maximum context length is 512 tokens. However, you requested 613 tokens in the input for embedding generation. Please reduce the length of the input.",
        512,
        613,
    ),
    ("The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure", 8192, 9000),
    ("Input validation error: `inputs` must have less than 512 tokens. Given: 785", 512, 785),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1500 `inputs` tokens and 1000 `max_new_tokens`",
        2048,
        1500,
    ),
    (
        "input (2055 tokens) is too large to process. increase the physical batch size (current batch size: 2048)",
        2048,
        2055,
    ),
    ("input is too large to process. increase the physical batch size", None, None),
    ("input is larger than the max context size. skipping", None, None),
    ("Invalid 'input[0]': maximum input length is 8192 tokens.", 8192, None),
    (
        "Request to model 'voyage-3' failed. The max allowed tokens per submitted batch is 120000. Your batch has 150000 tokens after truncation. Please lower the number of tokens in the batch.",
        120000,
        150000,
    ),
    ("Input length 600 exceeds maximum allowed token size 512", 512, 600),
    ("context_length_exceeded", None, None),
    (
        "ContextWindowExceededError: litellm.BadRequestError: prompt is too long: 208310 tokens > 200000 maximum",
        200000,
        208310,
    ),
    ("Requested 303123 tokens, max 300000 tokens per request", 300000, 303123),
    ("Input text exceeds maximum length of 8192 tokens", 8192, None),
]
OTHERS = [
    ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes", {}),
    ("Invalid 'tools': array too long. Expected an array with maximum length 128, but got one with length 200.", {}),
    ("Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000.", {}),
    ("Unknown parameter: 'context_window'", {}),
    ("Tool call id was x but must be a-z, A-Z, 0-9, with a length of 9.", {}),
    ("Unsupported parameter: 'max_tokens' is not supported with this model.", {}),
    ("The image is too large", {}),
    ("max_tokens is too large: 32768. This model supports at most 16384 completion tokens.", {"max_output": 16384}),
    ("max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for c", {"max_output": 32000}),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", {"max_output": 8192}),
    (
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the"
        " `context_window` for this model",
        {"max_output": 8192},
    ),
]


@pytest.mark.parametrize(("message", "window", "counted"), TOO_LONG)
def test_a_request_that_is_too_long(message: str, window: int | None, counted: int | None) -> None:
    """A refusal is known for what it is, and its numbers are the window and the server's count of the request."""
    assert is_too_long(message)
    told = numbers(message, {}, too_long=True)
    assert (told.get("window"), told.get("counted")) == (window, counted)


@pytest.mark.parametrize(("message", "told"), OTHERS)
def test_other_limits(message: str, told: dict[str, int]) -> None:
    """A refusal of an image, a list, a rate or the answer's cap is none of the whole request."""
    assert not is_too_long(message)
    assert not never_fits(message)
    assert numbers(message, {}, too_long=False) == told


def test_a_rate_that_one_request_exceeds() -> None:
    """A limit of tokens per minute that the request alone exceeds is a window: no waiting helps."""
    assert never_fits("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 48000.")


def test_the_fields_of_a_refusal() -> None:
    """The fields of llama.cpp count before its words."""
    assert numbers("no", {"n_ctx": 4096, "n_prompt_tokens": 5000}, too_long=True) == {"window": 4096, "counted": 5000}
    assert numbers("no", {"n_ctx": "4096", "n_prompt_tokens": -1}, too_long=True) == {}


def test_a_number_of_thousands_of_digits() -> None:
    """It is no limit of any server, and no fault of ours."""
    words = f"This model's maximum context length is {'9' * 5000} tokens"
    assert numbers(words, {}, too_long=True) == {}
    assert numbers(f"supports at most {'9' * 5000} completion tokens", {}, too_long=False) == {}
