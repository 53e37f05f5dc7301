"""Providers of models in their own wire formats, playing the scripts of `tests.support.scripted_llm`.

`gemini`, `anthropic`, `bedrock` and `responses` each hold a `Dialect`: how a request is read and an answer is written.
`provider` serves one of them: `async with scripted_provider(Gemini(), script) as llm`.
"""
