"""Environments for models that were trained to chat: messages in the model's own template, tools in its own format.

    task: messages, tools ──> template (the model's) ──> token ids ──> an engine samples a turn
                                                                          │ decoded for reading only
    given tokens of the answer <── template <── tool's answer <── tool <── calls

`words` knows tokenizer and template, `calls` the tool protocol, `session` the episode. Sampled ids stay as they were sampled:
a turn is decoded to be read, and what follows it is made of given text alone. Torch and transformers stay outside.
"""
